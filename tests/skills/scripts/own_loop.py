"""Trains a small language model with DistributedDataParallel.

Run: torchrun --standalone --nproc-per-node 2 own_loop.py
"""

import argparse
import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 64
IGNORED = -100


class Texts(Dataset):
    def __init__(self, size=256):
        draw = random.Random(0)
        self.lengths = [min(200, 4 + int(draw.expovariate(1 / 30))) for _ in range(size)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, VOCABULARY, (self.lengths[index],), generator=generator)
        return {"input_ids": ids, "labels": ids}


def pad(samples):
    ids = [sample["input_ids"] for sample in samples]
    labels = [sample["labels"] for sample in samples]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "labels": nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        "attention_mask": nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in ids], batch_first=True
        ),
    }


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, batch):
        hidden, _ = self.rnn(self.embed(batch["input_ids"]))
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Texts()
    sampler = DistributedSampler(dataset, shuffle=True, seed=7)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=1, collate_fn=pad
    )
    model = Model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            is_last = (number + 1) % args.accumulate == 0
            with nullcontext() if is_last else ddp.no_sync():
                logits = ddp(batch)
                loss = F.cross_entropy(
                    logits[:, :-1].flatten(0, 1),
                    batch["labels"][:, 1:].flatten(),
                    ignore_index=IGNORED,
                )
                (loss / args.accumulate).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                if dist.get_rank() == 0:
                    print(f"epoch {epoch} batch {number} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
