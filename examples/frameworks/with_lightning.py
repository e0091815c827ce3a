"""Train with Lightning on balanced microbatches: nothing is to be attached.

Run: python examples/frameworks/with_lightning.py
"""

from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch.utils.data import Dataset

import counterpoise as cp

ACCUMULATE = 2


class Series(Dataset[torch.Tensor]):
    """Series of numbers of very different lengths."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a series, the same at every call."""
        numbers = torch.Generator().manual_seed(index)
        return torch.rand(4 + 7 * index % 60, 1, generator=numbers)


class Line(LightningModule):
    """A line through the numbers; a series counts as much as any other."""

    def __init__(self) -> None:
        """Make the model, and the rule of what Lightning divides by."""
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.rule = cp.loader.loss_rule("lightning", accumulate=ACCUMULATE)

    def training_step(self, given: Any, _: int) -> torch.Tensor:
        """Return the microbatch's share of the step's mean."""
        series, info = given
        print(f"step {info.step}: {info.samples} series, {len(series)} numbers")
        return self.rule.scale((self.line(series) - series).square().sum(), info, per="sample")

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train for one epoch; the loader checks accumulate_grad_batches."""
    loader = cp.DataLoader(
        Series(),
        cost=lambda series: {"numbers": len(series)},
        balance=cp.Balance(budgets={"numbers": 400}, samples_per_step=16, accumulate=ACCUMULATE),
        shuffle=True,
        collate_fn=torch.cat,
    )
    trainer = Trainer(
        max_epochs=1, accumulate_grad_batches=ACCUMULATE, accelerator="cpu", devices=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Line(), loader.with_info())


if __name__ == "__main__":
    main()
