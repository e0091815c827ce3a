"""Energon (megatron-energon) as a pipeline of `make bench NAME=decoding`, where it is installed.

Its crude samples are decoded as those of webdataset's pipeline are, and its batches made by the
same function, in its own loader: torch's DataLoader with persistent workers.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_PART = "train"


def why_no_energon() -> str:
    """Return why there is no such pipeline here, "" if there is one."""
    try:
        found = importlib.util.find_spec("megatron.energon")
    except ModuleNotFoundError:  # no package of that name at all
        found = None
    return "" if found else "megatron-energon is not installed"


def energon_loader(
    folder: str,
    decode: Callable[[Mapping[str, Any]], Any],
    collate: Callable[[list[Any]], Any],
    batch_size: int,
    workers: int,
    prefetch: int,
) -> Any:
    """Return a loader of the shards in a folder, which is prepared as `energon prepare` does."""
    from megatron import energon

    _prepare(folder)

    class Encoder(energon.TaskEncoder):  # type: ignore[misc]
        """Leaves images as bytes for `decode`, and makes batches by `collate`."""

        decoder = None
        cookers = (energon.Cooker(energon.stateless(decode)),)

        def batch(self, samples: list[Any]) -> Any:
            return collate(samples)

    dataset = energon.get_val_dataset(
        folder,
        split_part=_PART,
        worker_config=energon.WorkerConfig(
            rank=0,
            world_size=1,
            num_workers=workers,
            global_error_handler=energon.reraise_exception,
        ),
        batch_size=batch_size,
        task_encoder=Encoder(),
    )
    return energon.get_loader(dataset, prefetch_factor=prefetch, watchdog_timeout_seconds=None)


def _prepare(folder: str) -> None:
    """Index the shards, and say what they are."""
    from megatron.energon import BaseWebdatasetFactory

    if Path(folder, ".nv-meta").exists():
        return
    shards = sorted(path.name for path in Path(folder).glob("*.tar"))
    with contextlib.redirect_stdout(sys.stderr):  # standard output is the report's
        BaseWebdatasetFactory.prepare_dataset(
            folder, shards, split_parts_ratio=[(_PART, 1.0)], shuffle_seed=None, workers=1
        )
    Path(folder, ".nv-meta", "dataset.yaml").write_text(_DATASET)
