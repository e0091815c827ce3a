"""Fine-tunes a small Llama with transformers' Trainer.

Run: torchrun --standalone --nproc-per-node 2 hf_trainer.py
"""

import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

VOCABULARY = 64


class Chats(Dataset):
    """Tokenized conversations, of very different lengths."""

    def __init__(self, size=128, seed=0):
        draw = random.Random(seed)
        self.rows = []
        for _ in range(size):
            length = min(120, 4 + int(draw.expovariate(1 / 25)))
            ids = [draw.randrange(3, VOCABULARY) for _ in range(length)]
            prompt = length // 4
            self.rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Collator:
    """Pads to the longest of a batch."""

    def __init__(self, pad_token_id=0):
        self.pad_token_id = pad_token_id

    def __call__(self, rows):
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in rows:
            missing = longest - len(row["input_ids"])
            batch["input_ids"].append(row["input_ids"] + [self.pad_token_id] * missing)
            batch["labels"].append(row["labels"] + [-100] * missing)
            batch["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        return {name: torch.tensor(rows) for name, rows in batch.items()}


def new_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def main():
    set_seed(42)
    model = new_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            max_grad_norm=0,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            seed=42,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Chats(),
            eval_dataset=Chats(size=16, seed=1),
            data_collator=Collator(),
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
