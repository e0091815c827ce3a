"""The peers of the matrix: other people's loaders, each where it is installed."""

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from .cell import Cell

# Names of distributions, and the module here that opens the loader.
PEERS = {
    "torchdata": "torchdata_stateful", "spdl": "spdl_subprocesses",
    "mosaicml-streaming": "mosaic_streaming", "webdataset": "webdataset_tars", "grain": "grain_map",
}  # fmt: skip
# The systems that are always there; "control" is torch's loader again.
OWN = {"ours": "ours", "torch": "torchs", "control": "torchs"}


def versions(asked: Sequence[str] = ()) -> dict[str, str | None]:
    """Return the version of each peer that was asked for, or of all; None: it is not installed.

    Raises ValueError for a name that is no peer.
    """
    if unknown := set(asked) - set(PEERS):
        raise ValueError(f"--peer got {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return {name: _version(name) for name in PEERS if not asked or name in asked}


def open_system(name: str, cell: Cell) -> Any:
    """Return the loader of a system for a cell."""
    module = {**OWN, **PEERS}[name]
    return importlib.import_module(f"{__package__}.{module}").open_loader(cell)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
