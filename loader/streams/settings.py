"""Makes the balanced loop over a stream of a DataLoader's arguments, and refuses what has none."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, IterDataPipe

from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import Waits, padded_of
from ...balancer.protocol.job_spec import IN_BATCHES, JobSpec
from ...workers.sources.data_identity import KnownData
from ...workers.sources.failures import checked_path
from ...workers.sources.interface import source_name
from ..collate.chosen import BatchMaker
from ..step.ranks import Place
from .loader import StreamLoader
from .loop import LoopSettings, StreamLoop
from .pack_loader import PackLoader
from .packing import Limits
from .reader import PackedStream, PackSettings

# The options of a Balance that mean something for a stream; seed: of nothing, as its order is its
# own, but sweeps and frameworks give one to every loader.
OPTIONS = (
    "budgets", "accumulate", "work", "oversize", "layout", "pad_id", "dummy_tile", "label_tokens",
    "seed",
)  # fmt: skip
EXAMPLE = 'balance=cp.Balance(budgets={"tokens": 4096}, layout="packed")'


def is_packed_stream(dataset: Any) -> bool:
    """Return whether a balanced loop packs a data set as a stream: it has no samples by index."""
    return (
        isinstance(dataset, IterableDataset)
        and not isinstance(dataset, IterDataPipe)
        and not hasattr(dataset, "__getitems__")
    )


def checked_balance(balance: Balance) -> Balance:
    """Return a Balance by which a stream can be packed; ValueError where it asks for more."""
    if not balance.budgets:
        raise ValueError(
            "a stream is packed within budgets, as samples that have not come yet cannot be "
            f"planned with, and balance has none: give {EXAMPLE}, or a map-style dataset (for "
            'shards of webdataset cp.TarDataset("shards/*.tar", transform)), or leave balance'
        )
    if balance.accumulate == "auto":
        raise ValueError(
            "accumulate is 'auto', and a stream does not say how many samples a step has: give "
            "the number of packs that each rank has in a step, Balance(accumulate=4), say"
        )
    for name in (each.name for each in fields(Balance)):
        given, default = getattr(balance, name), getattr(DEFAULTS, name)
        if name not in OPTIONS and given != default and (name, given) != ("counts", "free"):
            raise ValueError(
                f"{name} is {given!r}, and a stream is packed as it comes, on each rank by itself: "
                f"leave {name} (of a Balance it has {', '.join(OPTIONS)}), or give a map-style "
                "dataset"
            )
    return balance


def refuse_for_streams(batch_size: int | None, shuffle: bool | None, **given: Any) -> None:
    """Raise ValueError for arguments that have no meaning for a stream; None: not given."""
    if batch_size not in (None, 1):
        raise ValueError(
            f"batch_size is {batch_size}, and budgets decide how many samples of a stream a "
            "microbatch has: leave batch_size; Balance(accumulate=...) says how many microbatches "
            "a step has"
        )
    if shuffle:
        raise ValueError(
            "shuffle=True, and a stream has an order of its own: leave shuffle, and let the stream "
            "shuffle (data.shuffle(buffer_size=...) of Hugging Face and webdataset)"
        )
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is given, and has no meaning for a stream, which this rank's own workers "
                f"read: leave {name}, or give a map-style dataset"
            )

@dataclass(frozen=True, slots=True)
class StreamSettings:
    """All that a balanced loop over a stream is made of, but its ranks.

    given: the DataLoader's arguments that torch's does not have; like: a torch's DataLoader with
    those that it has.
    """

    given: Any
    like: TorchDataLoader[Any]
    batches: BatchMaker
    takes_empty: bool
    resources: tuple[str, ...]

    @property
    def dataset(self) -> Any:
        """The stream."""
        return self.like.dataset

    def make(self, place: Place, waits: Waits | None) -> StreamLoader:  # noqa: ARG002
        """Return the loader of a place; ValueError for one that plays, or shares, several ranks."""
        given, balance = self.given, self.given.balance
        if len(place.played) > 1 or place.sharers > 1:
            raise ValueError(
                f"this process is {place}, and each rank has a stream of its own: leave "
                "virtual_ranks, and dimensions other than data parallelism in topology"
            )
        plan = PlanConfig.from_balance(
            balance, ranks=place.ranks, resources=self.resources,
            samples_per_step=place.ranks * balance.accumulate, drop_last=self.like.drop_last,
        )  # fmt: skip
        job = JobSpec(plan=plan, on_error=given.on_error, label_tokens="")
        packs = PackLoader(self._stream(), self.like, given.transport, balance.accumulate)
        loop = LoopSettings(
            job=job,
            packs=packs,
            place=place,
            collate=self.batches.in_worker if self.takes_empty else None,
            drop_last=self.like.drop_last,
            name=given.name,
            timeout_s=self.like.timeout or None,
        )
        return StreamLoader(
            job=job,
            ranks=place.played,
            connect=partial(StreamLoop, loop),
            batches=self.batches,
            data=partial(KnownData, self.like.dataset, None),
            timeout_s=self.like.timeout or None,
            dead_letter=given.dead_letter,
            max_errors=given.max_errors,
            name=source_name(self.like.dataset),
            shifts_labels=balance.layout != "torch",
            packs=packs,
        )

    def _stream(self) -> PackedStream:
        given, balance, like = self.given, self.given.balance, self.like
        padded = padded_of(balance.resolved_work, self.resources)
        label = balance.label_tokens
        settings = PackSettings(
            limits=Limits(
                tuple(balance.budgets[name] for name in self.resources),
                tuple(name in padded for name in self.resources),
            ),
            resources=self.resources,
            cost=given.cost,
            collate=self.batches.in_worker,
            takes_empty=self.takes_empty,
            oversize=balance.oversize,
            label_tokens=None if label == IN_BATCHES else label,
            on_error=given.on_error,
            most_bytes=given.buffer_bytes // max(1, like.num_workers),
        )
        return PackedStream(like.dataset, settings)


def settings_of_stream(
    loader: TorchDataLoader[Any], given: Any, takes_nothing: Callable[[Any], bool]
) -> StreamSettings:
    """Return the settings of the loop over `loader`'s stream; ValueError for what cannot be.

    takes_nothing: whether a collate function makes a batch of no samples.
    """
    balance = given.balance
    checked_path(given.dead_letter)
    if given.cost is not None and not callable(given.cost):
        raise ValueError(
            f"cost is a {type(given.cost).__name__}, and samples of a stream have no index in a "
            "table: give a function from a sample to its costs"
        )
    if isinstance(given.max_errors, float):
        raise ValueError(
            f"max_errors={given.max_errors} is a part of the samples, and a stream does not say "
            "how many it has: give a count"
        )
    like = TorchDataLoader(
        loader.dataset, batch_size=None, num_workers=loader.num_workers,
        pin_memory=loader.pin_memory, pin_memory_device=loader.pin_memory_device,
        timeout=loader.timeout, worker_init_fn=loader.worker_init_fn, generator=loader.generator,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers, prefetch_factor=loader.prefetch_factor,
    )  # fmt: skip
    like.__dict__["drop_last"] = loader.drop_last
    takes_empty = balance.layout != "torch" or takes_nothing(given.collate_fn)
    batches = BatchMaker(balance, given.collate_fn, given.fields)
    return StreamSettings(given, like, batches, takes_empty, tuple(balance.budgets))
