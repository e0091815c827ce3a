"""Train a causal model with transformers' Trainer on packed microbatches of equal work.

Run: python examples/frameworks/with_trainer.py
"""

import tempfile
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import counterpoise as cp


class Texts(Dataset[dict[str, Any]]):
    """Tokenized texts of very different lengths."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a text, the same at every call."""
        ids = np.random.default_rng(index).integers(2, 64, 4 + 7 * index % 60)
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Train for one epoch; Trainer divides by the label tokens of the whole step itself."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    loader = cp.DataLoader(
        Texts(),
        cost=lambda text: {"tokens": len(text["input_ids"])},
        balance=cp.Balance(
            budgets={"tokens": 400}, samples_per_step=16, accumulate=2, layout="packed"
        ),
        shuffle=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, gradient_accumulation_steps=2, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=LlamaForCausalLM(config), args=arguments)
        cp.adapters.attach_trainer(trainer, loader)
        result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
