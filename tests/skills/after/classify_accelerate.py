"""Trains a classifier of texts with Accelerate.

Run: torchrun --standalone --nproc-per-node 2 classify_accelerate.py
"""

import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

import counterpoise as cp

VOCABULARY, CLASSES = 100, 4


def read_reviews(size=256):
    """Return token ids and a class for each review."""
    draw = random.Random(0)
    reviews = []
    for number in range(size):
        length = min(200, 4 + int(draw.expovariate(1 / 30)))
        ids = [draw.randrange(1, VOCABULARY) for _ in range(length)]
        reviews.append({"input_ids": ids, "label": number % CLASSES})
    return reviews


def collate(reviews):
    rows = [torch.tensor(review["input_ids"]) for review in reviews]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([review["label"] for review in reviews]),
    }


class Classifier(nn.Module):
    """The mean of a review's embeddings, and two layers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        hidden = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        return self.head(hidden)


def main():
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    loader = cp.DataLoader(
        read_reviews(),
        batch_size=8,
        shuffle=True,
        collate_fn=collate,
        num_workers=1,
        balance=cp.Balance("auto", counts="free"),
    )
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = cp.adapters.prepare_accelerate(accelerator, loader.with_info())
    rule = cp.loss_rule("accelerate", accumulate=2)
    for epoch in range(1):
        for batch, info in loader:
            with accelerator.accumulate(model):
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])
                loss_sum = nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
                accelerator.backward(rule.scale(loss_sum, info, per="sample"))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.print(
                    f"epoch {epoch} loss {loss_sum.item() / max(1, info.samples):.3f}"
                )
    accelerator.end_training()


if __name__ == "__main__":
    main()
