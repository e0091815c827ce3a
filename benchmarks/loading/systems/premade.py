"""The samples of every system: sixteen tensors of random bytes, again and again."""

import torch

from .cell import Cell

DISTINCT = 16


class PremadeTensors(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset of the samples of a cell's pass, which exist before it begins."""

    def __init__(self, cell: Cell) -> None:
        shape, most = (cell.sample_bytes,), 255
        self._count = cell.batches * cell.batch_size
        self.made = [torch.randint(0, most, shape, dtype=torch.uint8) for _ in range(DISTINCT)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.made[index % DISTINCT]
