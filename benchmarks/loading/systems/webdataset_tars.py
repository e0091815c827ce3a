"""webdataset in torch's DataLoader: it reads tars, so each worker has one, in the page cache.

A worker reads its tar again and again, and makes batches of it itself, as webdataset's docs
recommend.
"""

import io
import tarfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import webdataset

from .cell import Cell
from .premade import DISTINCT, PremadeTensors
from .torchs import WorkersOfTorch, options

# A tar's size, so that it is not opened for every few samples.
_TAR_BYTES = 16_000_000


def open_loader(cell: Cell) -> WorkersOfTorch:
    """Return torch's loader of a WebDataset whose members are the samples' bytes."""
    # default_collate copies them, so that they need not be writable
    warnings.filterwarnings("ignore", "The given buffer is not writable")
    folder = TemporaryDirectory(prefix="counterpoise-bench-")
    tars = [str(Path(folder.name, f"{number}.tar")) for number in range(cell.workers)]
    samples = max(DISTINCT, _TAR_BYTES // cell.sample_bytes)
    for path in tars:
        _write_tar(path, PremadeTensors(cell).made, samples)
    again = -(-cell.worker_batches * cell.batch_size // samples)
    dataset = (
        webdataset.WebDataset(tars * again, shardshuffle=False)
        .map(_tensor_of)
        .batched(cell.batch_size, collation_fn=torch.utils.data.default_collate)
        .with_epoch(cell.worker_batches)
    )
    named = {**options(cell), "batch_size": None}
    return WorkersOfTorch(torch.utils.data.DataLoader(dataset, **named), folder)


def _tensor_of(raw: Mapping[str, bytes]) -> torch.Tensor:
    return torch.frombuffer(raw["bin"], dtype=torch.uint8)


def _write_tar(path: str, tensors: list[torch.Tensor], samples: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            member = tarfile.TarInfo(f"{number:06}.bin")
            data = tensors[number % DISTINCT].numpy().tobytes()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
