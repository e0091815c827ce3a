"""mosaicml-streaming: it reads MDS shards, so there is one, in the page cache.

It is local, so that nothing is downloaded; a pass draws its samples from it again and again.
"""

import warnings
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .cell import Cell
from .premade import PremadeTensors
from .torchs import WorkersOfTorch, options


def open_loader(cell: Cell) -> WorkersOfTorch:
    """Return streaming's loader of a local shard whose samples are bytes."""
    streaming = _import_streaming()

    class Tensors(streaming.StreamingDataset):  # type: ignore[misc, name-defined]
        """Samples of a shard, made tensors as streaming's docs say: where they are read."""

        def __getitem__(self, at: Any) -> torch.Tensor:
            return torch.frombuffer(super().__getitem__(at)["data"], dtype=torch.uint8)

    # default_collate copies them, so that they need not be writable
    warnings.filterwarnings("ignore", "The given buffer is not writable")
    folder = TemporaryDirectory(prefix="counterpoise-bench-")
    with streaming.MDSWriter(out=folder.name, columns={"data": "bytes"}) as shard:
        for each in PremadeTensors(cell).made:
            shard.write({"data": each.numpy().tobytes()})
    samples = cell.batches * cell.batch_size
    dataset = Tensors(
        local=folder.name,
        batch_size=cell.batch_size,
        epoch_size=samples,
        predownload=samples,  # fewer, and workers sleep 7 ms where there is nothing to wait for
    )
    return WorkersOfTorch(streaming.StreamingDataLoader(dataset, **options(cell)), folder)


def _import_streaming() -> Any:
    """Return the module, also where torchvision, which it imports, is built for another device.

    PyPI's torchvision is built for CUDA, and beside a torch for CPUs its import ends with "operator
    torchvision::nms does not exist". Nothing here uses it, and without operators it can be
    imported when these two have a name.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        operators: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(operators)
    import streaming

    return streaming


# A library's operators are gone when it is.
_KEPT: list[Any] = []
