"""torch's DataLoader, and what is common to loaders that work as it does."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader

from .cell import Cell
from .premade import PremadeTensors


def options(cell: Cell) -> dict[str, Any]:
    """Return what all loaders with torch's parameters are given; they collate as torch does."""
    return {
        "batch_size": cell.batch_size,
        "num_workers": cell.workers,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }


class WorkersOfTorch:
    """A loader whose workers end with its iterator, as torch's, and files that they read."""

    def __init__(self, loader: Any, files: "TemporaryDirectory[str] | None" = None) -> None:
        self._loader, self._files = loader, files

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._loader)

    def close(self) -> None:
        """End the workers: at the interpreter's end they would be waited for, in vain."""
        if self._loader._iterator is not None:
            self._loader._iterator._shutdown_workers()
            self._loader._iterator = None
        if self._files is not None:
            self._files.cleanup()


def open_loader(cell: Cell) -> WorkersOfTorch:
    """Return torch's DataLoader of premade tensors."""
    return WorkersOfTorch(DataLoader(PremadeTensors(cell), **options(cell)))
