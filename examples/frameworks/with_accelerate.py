"""Train with Accelerate on balanced microbatches.

Run: python examples/frameworks/with_accelerate.py
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import Dataset

import counterpoise as cp


class Series(Dataset[torch.Tensor]):
    """Series of numbers of very different lengths."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a series, the same at every call."""
        numbers = torch.Generator().manual_seed(index)
        return torch.rand(4 + 7 * index % 60, 1, generator=numbers)


def main() -> None:
    """Train for one epoch; each step has 2 microbatches that hold as many numbers as each other."""
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    loader: Any = cp.DataLoader(
        Series(),
        cost=lambda series: {"numbers": len(series)},
        balance=cp.Balance(budgets={"numbers": 400}, samples_per_step=16, accumulate=2),
        shuffle=True,
        collate_fn=torch.cat,
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = cp.adapters.prepare_accelerate(accelerator, loader.with_info())
    rule = cp.loader.loss_rule("accelerate", accumulate=2)
    for series, info in loader:
        with accelerator.accumulate(model):
            loss = rule.scale((model(series) - series).square().sum(), info, per="sample")
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {info.step}: {info.samples} series, {len(series)} numbers")


if __name__ == "__main__":
    main()
