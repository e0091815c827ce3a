"""Take counterpoise's DataLoader instead of torch's: the same batches, from our workers.

Run: python examples/plain_dropin.py
"""

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from counterpoise.loader import DataLoader


class Squares(Dataset[tuple[int, torch.Tensor]]):
    """Any map-style dataset."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 100

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        """Return a number and its square."""
        return index, torch.tensor([index * index])


def main() -> None:
    """Read the same data with both loaders and compare every batch."""
    settings = {"batch_size": 8, "shuffle": True, "num_workers": 2}
    theirs = TorchDataLoader(Squares(), generator=torch.Generator().manual_seed(1), **settings)
    ours = DataLoader(Squares(), generator=torch.Generator().manual_seed(1), **settings)
    batches = 0
    for (number, square), (other_number, other_square) in zip(ours, theirs, strict=True):
        if not (torch.equal(number, other_number) and torch.equal(square, other_square)):
            raise SystemExit(f"batch {batches} differs")
        batches += 1
    print(f"{batches} batches, each the same as torch's")


if __name__ == "__main__":
    main()
