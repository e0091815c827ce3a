"""For what verl's SFT builds: `counterpoise try trial.py:make_loader --ranks 2`."""

from hydra import compose, initialize_config_module
from torch.utils.data import DataLoader
from verl.trainer.sft_trainer import SFTTensorCollator, create_sft_dataset
from verl.utils import hf_tokenizer


def make_loader():
    with initialize_config_module("verl.trainer.config", version_base=None):
        data = compose("sft_trainer_engine", ["data.train_files=train.parquet"]).data
    dataset = create_sft_dataset(data.train_files, data, hf_tokenizer("model"), None)
    collate = SFTTensorCollator(data.pad_mode)
    return DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
