"""Sizes of nanoVLM for CPU: fields of VLMConfig and TrainConfig, which are its configuration."""

from typing import Any

MODEL: dict[str, Any] = {
    "vit_hidden_dim": 32, "vit_inter_dim": 64, "vit_patch_size": 8, "vit_img_size": 32,
    "vit_n_heads": 2, "vit_n_blocks": 2, "lm_hidden_dim": 32, "lm_inter_dim": 64,
    "lm_max_position_embeddings": 512, "lm_vocab_size": 640, "lm_n_heads": 4, "lm_n_kv_heads": 2,
    "lm_n_blocks": 2, "lm_max_length": 256, "lm_tokenizer": "tokenizer", "max_img_size": 96,
    "mp_pixel_shuffle_factor": 2, "mp_image_token_length": 4, "resize_to_max_side_len": False,
    "vlm_load_backbone_weights": False, "hf_repo_name": None,
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "val_size": 16, "batch_size": 2, "gradient_accumulation_steps": 2, "eval_interval": 10,
    "use_lmms_eval": False, "stats_log_interval": 5, "max_training_steps": 20,
    "max_sample_length": 256, "train_dataset_name": ("shards",), "stream_dataset": False,
}  # fmt: skip
