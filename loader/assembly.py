"""Makes a balanced loader of a DataLoader's arguments: read from top to bottom.

`read_arguments` checks them, `settings_of` looks at the data, `BalancedSettings.make` plans for the
ranks of this process once these are known, and `_connection` chooses where microbatches come from:
the local loop, or the way to a balancer. balance="auto" finds its plan first: see automatic.py.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, default_collate

from ..balancer.planning.problem.balance import Balance, as_balance
from ..balancer.planning.problem.config import PlanConfig
from ..balancer.planning.problem.layout import base_of
from ..balancer.planning.problem.options import Waits
from ..balancer.protocol.job_spec import LABEL_TOKENS, JobSpec
from ..workers.arena.transport import Transport
from ..workers.mixture.order import epoch_samples, recipe_of, rows_of
from ..workers.sources.data_identity import KnownData
from ..workers.sources.failures import checked_path
from ..workers.sources.interface import DEFAULT_COST, Source, as_source, source_name
from ..workers.sources.randomness import held_generators
from .balanced.arguments import (
    check_decode_threads,
    checked_shuffle,
    find_resources,
    make_plan,
    read_order,
    refuse_ignored,
    said_or_adopted,
    with_rank,
    with_seed,
)
from .balanced.arrivals import MicrobatchSource
from .balanced.left_out import SkippedSamples, checked_keys
from .balanced.microbatches import BalancedLoader
from .collate.chosen import BatchMaker, WantedFields, checked_fields
from .local.loop import LocalLoop, LocalSettings
from .local.workers import WorkerStart
from .refused_arguments import is_packed_stream
from .remote_dataset import RemoteDataset
from .step.labels import find_label_source
from .step.ranks import Place, RankArguments

if TYPE_CHECKING:
    from .remote.factory import Fleet

logger = logging.getLogger(__name__)
DEFAULT_PREFETCH = 2
UNKNOWN = tuple(DEFAULT_COST)
# Bytes of a job that may be costs by which a mixture is ordered; the rest has room besides.
MOST_COSTS = 3 << 20


@dataclass(frozen=True, slots=True)
class BalancedArguments:
    """DataLoader's arguments that torch's does not have, or that mean more when balanced."""

    balance: Balance
    shuffle: bool
    collate_fn: Callable[[list[Any]], Any] | None
    ranks: RankArguments
    follows: DistributedSampler[Any] | None
    name: str
    cost: Any
    key: Callable[[int], str] | None
    balancer: str | None
    keys: str | Path | None
    fleet: "Fleet | None"
    on_error: str
    dead_letter: str | None
    max_errors: float | None
    buffer_bytes: int
    growing_data: bool
    transport: Transport
    fields: WantedFields
    decode_threads: int
    worker_restarts: int = 0
    skip_keys: frozenset[str] = frozenset()
    job: str | None = None
    stats: Any = None


def read_arguments(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    generator: Any,
    *,
    balance: Any,
    rank: int | None,
    ranks: int | None,
    virtual_ranks: int | None,
    process_group: Any,
    topology: Any,
    fields: Any,
    **others: Any,
) -> BalancedArguments:
    """Return a DataLoader's arguments, checked; ValueError for what would have no effect."""
    others["skip_keys"] = checked_keys(others["skip_keys"])
    if hasattr(dataset, "spec"):  # workers elsewhere can read it
        others["balancer"] = others["balancer"] or os.environ.get("COUNTERPOISE_BALANCER")
    if is_packed_stream(dataset):
        from .streams.settings import checked_balance  # here: other loops need nothing of streams

        places = RankArguments(rank, ranks, virtual_ranks, process_group, topology)
        if others["skip_keys"]:
            raise ValueError("skip_keys is for samples with keys, and those of a stream have none")
        wanted = checked_balance(as_balance(balance), batch_size, shuffle, others)
        return BalancedArguments(
            wanted, False, fields=checked_fields(fields), follows=None, ranks=places, **others
        )
    order = read_order(dataset, sampler, batch_sampler, generator, shuffle)
    wanted = with_seed(as_balance(balance), order)
    is_remote = isinstance(dataset, RemoteDataset)
    refuse_ignored(is_remote, wanted, batch_size, others["cost"], others["key"])
    places = RankArguments(rank, ranks, virtual_ranks, process_group, topology, wanted.dispatch)
    return BalancedArguments(
        balance=wanted,
        shuffle=checked_shuffle(order.shuffle, wanted.mode),
        ranks=with_rank(places, order),
        follows=order.follows,
        fields=checked_fields(fields),
        **others,
    )


def settings_of(loader: TorchDataLoader[Any], given: BalancedArguments) -> Any:
    """Return the settings of the balanced loader behind `loader`, made when its ranks are needed.

    They are BalancedSettings, or StreamSettings.

    Starts no process, opens no connection and looks at no rank. Raises ValueError for arguments
    that contradict each other, or that the data cannot meet. balance="auto" reads no sample here,
    and finds its resources later.
    """
    if is_packed_stream(loader.dataset):
        from .streams.settings import settings_of_stream

        return settings_of_stream(loader, given, _takes_nothing(given.collate_fn))
    if given.keys is not None and given.balancer is None:
        raise ValueError("keys are for a standalone balancer: give its address too, balancer=")
    checked_path(given.dead_letter)
    if given.skip_keys and isinstance(loader.dataset, RemoteDataset):
        raise ValueError(
            "skip_keys is looked for in the data set, and a RemoteDataset has no keys here: give "
            "the data set itself, cp.TarDataset(...)"
        )
    dataset, balance, workers = rows_of(loader.dataset), given.balance, loader.num_workers
    remote = isinstance(dataset, RemoteDataset)
    source = None if remote else as_source(dataset, given.cost, given.key)
    check_decode_threads(given.decode_threads, given.balancer, workers, source)
    takes_empty = base_of(balance.layout) is not None
    resources: tuple[str, ...] = ()
    label_tokens = balance.label_tokens or LABEL_TOKENS
    if balance.grouping != "auto":
        resources = find_resources(source, balance)
        # raises for what cannot be planned with any number of ranks
        make_plan(
            replace(balance, samples_per_step=None),
            resources=resources,
            ranks=1,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            empty_microbatches=True,
        )
    pins = loader.pin_memory and torch.accelerator.is_available()
    batches = BatchMaker(balance, given.collate_fn, given.fields, pins)
    if balance.grouping != "auto":
        takes_empty = takes_empty or (
            balance.layout == "torch" and _takes_nothing(given.collate_fn)
        )
        label_tokens = find_label_source(source, balance, resources, given.collate_fn)
    context: Any = loader.multiprocessing_context
    start = WorkerStart(
        workers,
        loader.persistent_workers,
        context,
        loader.worker_init_fn if workers else None,
        given.decode_threads,
        loader.pin_memory,
        given.worker_restarts if workers else 0,
        given.stats,
    )
    return BalancedSettings(
        given=given,
        dataset=dataset,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        start=start,
        prefetch=loader.prefetch_factor or DEFAULT_PREFETCH,
        timeout_s=loader.timeout or None,
        source=source,
        resources=resources,
        batches=batches,
        takes_empty=takes_empty,
        label_tokens=label_tokens,
    )


@dataclass(frozen=True, slots=True)
class BalancedSettings:
    """All that a balanced loader is made of, but its ranks; torch's arguments among it.

    They are copied, so that no cycle with the DataLoader is made.
    """

    given: BalancedArguments
    dataset: Any
    batch_size: int | None
    drop_last: bool
    start: WorkerStart
    prefetch: int
    timeout_s: float | None
    source: Source | None
    resources: tuple[str, ...]
    batches: BatchMaker
    takes_empty: bool
    label_tokens: str

    def make(self, place: Place, waits: Waits | None) -> BalancedLoader:
        """Return the balanced loader of a place; ValueError for what its ranks cannot do."""
        balance = self.given.balance
        if self.resources == UNKNOWN and 0 in place.played and balance.grouping != "fixed":
            logger.warning(
                "nothing is balanced: what a sample of this %s costs is not known, and each counts "
                "as 1; give DataLoader(cost=...), a function from a sample to its costs or a table "
                "of them, or a dataset with probe(index)",
                type(self.dataset).__name__,
            )
        plan = make_plan(
            said_or_adopted(balance, waits),
            resources=self.resources,
            ranks=place.ranks,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            empty_microbatches=self.takes_empty,
        )
        return self.make_planned(plan, place)

    def make_planned(self, plan: PlanConfig, place: Place, auto: str = "") -> BalancedLoader:
        """Return the balanced loader of a plan; `auto` is what balance="auto" has found for it."""
        given, dataset, source = self.given, self.dataset, self.source
        known = lambda: KnownData(dataset, None)  # noqa: E731
        skipped: Callable[[int], tuple[int, ...]] = lambda _: ()  # noqa: E731
        if source is not None:
            if given.skip_keys:
                skipped = SkippedSamples(source, given.skip_keys, plan.seed, given.shuffle)
            count_now = partial(epoch_samples, source, given.shuffle)
            if (count := count_now()) < place.ranks:
                raise ValueError(
                    f"{count} samples cannot feed {place.ranks} ranks: use fewer ranks"
                )
            looked_at = KnownData(dataset, count, source.key).looked_at()
            known = lambda: replace(looked_at, samples=count_now())  # noqa: E731
            # Elsewhere a step that lacks samples is left out: `accumulate` says what it needs.
            if plan.accumulate == "auto" or plan.last_step != "whole":
                plan = replace(plan, spares=not plan.empty_microbatches)
        if given.balancer and not hasattr(dataset, "spec"):
            raise ValueError(
                f"workers elsewhere cannot read a {type(dataset).__name__}: give a TarDataset, or "
                "a RemoteDataset for files that only they can see"
            )
        held = held_generators(dataset) if 0 in place.played else []
        if held:
            logger.warning(
                "random choices from %s.%s depend on which worker loads which samples: draw from "
                "random's, numpy's or torch's own functions, which are seeded for each sample",
                type(dataset).__name__,
                held[0],
            )
        mixed = recipe_of(source)
        facts = {} if mixed is None else mixed.facts()
        packed = sum(map(len, facts.get("costs", ())))
        if packed > MOST_COSTS and not self._is_local(place):
            raise ValueError(
                f"the costs by which the mixture is ordered take {packed:,} bytes, and a balancer "
                f'takes {MOST_COSTS:,}, about a million samples: mix by="samples", or leave '
                "balancer= and ranks that several processes share"
            )
        job = JobSpec(
            plan=plan,
            source=dataset.spec() if given.balancer else {},
            shuffle=given.shuffle,
            on_error=given.on_error,
            buffer_bytes=given.buffer_bytes,
            label_tokens=self.label_tokens,
            mixture=facts,
            shift_labels=given.balance.shift_labels,
        )
        # torch's own thread pins the batches of a local loop's workers
        pins_ahead = self._is_local(place) and self.start.workers > 0
        return BalancedLoader(
            job=job,
            ranks=place.played,
            connect=self._connection(job, place),
            batches=replace(self.batches, pins=False) if pins_ahead else self.batches,
            timeout_s=self.timeout_s,
            dead_letter=given.dead_letter,
            max_errors=given.max_errors,
            name=source_name(dataset),
            data=known,
            growing=given.growing_data,
            auto=auto,
            skipped=skipped,
            sources=() if mixed is None else mixed.names,
        )

    def _is_local(self, place: Place) -> bool:
        """Return whether workers of this process load and collate what the plan gives them."""
        has_data = self.source is not None
        return has_data and self.given.balancer is None and place.sharers == 1

    def _connection(self, job: JobSpec, place: Place) -> Callable[[], MicrobatchSource]:
        """Return the maker of the connection: of the local loop, or of the way to a balancer.

        Raises ValueError for keys that are not a trainer's.
        """
        given, source = self.given, self.source
        if source is not None and self._is_local(place):
            settings = LocalSettings(
                job=job,
                dataset=self.dataset,
                source=source,
                place=place,
                start=self.start,
                collate=self.batches.in_worker,
                takes_empty=self.takes_empty,
                draws=self.batches.draws,
                prefetch=self.prefetch,
                transport=given.transport,
                name=given.name,
                timeout_s=self.timeout_s,
            )
            return partial(LocalLoop, settings)
        # here: who has no balancer loads nothing of ZeroMQ
        from ..balancer.transport.keys import peer_keys
        from .remote.factory import ConnectionFactory

        factory = ConnectionFactory(
            job=job, source=source, place=place, start=self.start, prefetch=self.prefetch,
            balancer=given.balancer, fleet=given.fleet, job_name=given.job, name=given.name,
            keys=peer_keys(Path(given.keys), "trainer") if given.keys is not None else None,
            transport=given.transport, batches=self.batches, takes_empty=self.takes_empty,
        )  # fmt: skip
        return factory.connect


def _takes_nothing(collate_fn: Callable[[list[Any]], Any] | None) -> bool:
    """Return whether a collate function makes a batch of no samples; torch's default does not.

    >>> _takes_nothing(None), _takes_nothing(list)
    (False, True)
    """
    try:
        (collate_fn or default_collate)([])
    except Exception:  # whatever it raises, it would raise in the middle of an epoch
        return False
    return True
