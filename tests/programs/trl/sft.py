"""TRL's SFT of a tiny model: torchrun --nproc-per-node 2 sft.py [CHECKPOINT]; BALANCED=1: ours."""

import os
import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import counterpoise as cp

rows = load_dataset("json", data_files={"train": "train.jsonl", "eval": "eval.jsonl"})
trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained("model"),
    processing_class=AutoTokenizer.from_pretrained("model"),
    train_dataset=rows["train"],
    eval_dataset=rows["eval"],
    args=SFTConfig(
        output_dir="out",
        per_device_train_batch_size=5,
        gradient_accumulation_steps=3,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=10,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        num_train_epochs=2,
        logging_steps=1,
        save_steps=14,
        report_to=[],
        # on CPU
        use_cpu=True,
        bf16=False,
    ),
)
if os.environ.get("BALANCED"):
    cp.adapters.attach_trainer(trainer)
trainer.train(resume_from_checkpoint=sys.argv[1] if sys.argv[1:] else None)
