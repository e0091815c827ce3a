"""Samples of known sizes, of which some cannot be read."""

from collections.abc import Collection, Sequence

import torch

from counterpoise.balancer.planning.kernels.arrays import Int64


class Texts:
    """As many tokens in a sample as its size says; `broken` samples raise KeyError."""

    def __init__(self, sizes: Sequence[int] | Int64, broken: Collection[int] = ()) -> None:
        self.sizes, self.broken = sizes, broken

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.broken:
            raise KeyError(f"sample {index}")
        return torch.full((int(self.sizes[index]),), index)
