"""Refuses the constructor's arguments that would have no effect, or that contradict each other.

Without this a mistyped or misplaced argument would be dropped without a word. What only a balanced
loader has is checked in balanced/arguments.py: a plain loop does not import it.
"""

import os
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe

from .on_error import OnError

TARS = (".tar", ".tar.gz", ".tgz")
# The bytes that are held by default, as in JobSpec.
BUFFER_BYTES = 1 << 30
# Arguments of a balanced loader by the default; that of all others is None.
DEFAULTS = {"buffer_bytes": BUFFER_BYTES, "decode_threads": 1}

# Words of other loaders, and what is written here.
RANK_WORDS = {
    "rank": "ranks=(3, 8), rank 3 of 8",
    "world_size": "ranks=(3, 8), rank 3 of 8",
    "process_group": "ranks=group",
    "device_mesh": "ranks=mesh",
    "topology": "ranks={'dp': 2, 'tp': 2}, or a DeviceMesh",
}
WORDS = {
    **RANK_WORDS,
    "virtual_ranks": "ranks=Ranks(virtual=8)",
    "fleet": "balancer=cp.fleet.Ray(workers=(4, 64))",
}


def value_classes() -> dict[str, type[Any]]:
    """Return the classes of the values that DataLoader's arguments may be."""
    # here: a plain loop imports nothing of planning
    from ..balancer.planning.problem.balance import Balance
    from .balanced.settings import Balancer
    from .step.ranks import Ranks

    # Balance last: values in it have fields of the same names
    return {"ranks": Ranks, "balancer": Balancer, "on_error": OnError, "balance": Balance}


def refuse_no_samples(dataset: Any, balance: object) -> None:
    """Raise ValueError for paths in place of a data set, and for an iterator to be balanced.

    A text has a length and letters, so that a loader would go over these.
    """
    first = dataset[0] if isinstance(dataset, list | tuple) and dataset else dataset
    is_path = isinstance(dataset, str | bytes | os.PathLike)
    if is_path or (isinstance(first, str | os.PathLike) and str(first).endswith(TARS)):
        shown = f"{dataset!r:.80}"
        raise ValueError(
            f"{shown} names files, and is no data set: for tar shards give cp.TarDataset({shown}), "
            "for others a data set that reads them"
        )
    is_stream = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    is_stream = isinstance(dataset, IterDataPipe) or is_stream
    if balance is not None and is_stream and not hasattr(dataset, "__getitems__"):
        raise ValueError(
            f"balance= needs a map-style dataset, or an IterableDataset, whose samples are packed "
            f"as they come, and a {type(dataset).__name__} is neither: give an IterableDataset "
            "whose __iter__ iterates over it, a data set with len() and dataset[i], for shards of "
            'webdataset cp.TarDataset("shards/*.tar", transform), or leave balance'
        )


def is_packed_stream(dataset: Any) -> bool:
    """Return whether a balanced loop packs a data set as it comes: no sample has an index."""
    is_stream = isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)
    return is_stream and not hasattr(dataset, "__getitems__")


def refuse_without_balance(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments, by name, that only a balanced loader has."""
    for name, value in arguments.items():
        default = DEFAULTS.get(name)
        if value is not None if default is None else value != default:
            raise ValueError(f'{name} needs a balanced loader: give balance="balanced", say')
