"""The library as the delivery cases call it: the only file of theirs that follows a new interface.

Everything that the cases take from counterpoise is imported here, and every loader is made here.
"""

from collections.abc import Mapping
from typing import Any

from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, RemoteDataset
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.interface import Probe, SampleError
from tests.flat_options import flat_balance

__all__ = [
    "INFO", "Probe", "RemoteDataset", "SampleError", "TarDataset", "VisionLanguage",
    "balanced_loader", "balanced_sampler", "make_info", "plain_loader",
]  # fmt: skip

# What a StepInfo says, by the names that the digests know it under.
INFO = (
    "epoch", "step", "microbatch", "microbatches", "rank", "ranks", "samples", "label_tokens",
    "rank_samples", "rank_label_tokens", "step_samples", "step_label_tokens", "keys", "holes",
    "images", "empty", "last",
)  # fmt: skip


def plain_loader(data: Any, **arguments: Any) -> Any:
    """Return a loader that does what torch's does."""
    return DataLoader(data, **arguments)


def balanced_loader(data: Any, options: Mapping[str, Any], **rest: Any) -> Any:
    """Return a balanced loader; `options` name every balancing option, `rest` everything else."""
    given = dict(options)
    size = given.pop("batch_size") or 1
    layout = {name: rest.pop(name) for name in ("layout", "pad_id", "dummy_tile")}
    return DataLoader(data, size, balance=_balance({**given, **layout}), **rest)


def balanced_sampler(costs: Any, options: Mapping[str, Any], **rest: Any) -> Any:
    """Return a batch sampler for torch's loader that plans with the same options."""
    given = dict(options)
    size = given.pop("batch_size")
    return BalancedBatchSampler(costs, _balance(given), batch_size=size, **rest)


def _balance(options: Mapping[str, Any]) -> Balance:
    return flat_balance(**{**options, "budgets": options["budgets"] or {}})


def make_info(loader: Any) -> Any:
    """Return the StepInfo of the batch that was handed out last."""
    return loader.step_info
