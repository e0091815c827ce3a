"""Builds the balanced part of a DataLoader: job, connection and collate function."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, default_collate

from ..balancer.planning.problem.balance import Balance
from ..balancer.planning.problem.config import PlanConfig
from ..balancer.planning.problem.options import Waits
from ..balancer.protocol.job_spec import LABEL_TOKENS, JobSpec
from ..workers.arena.transport import Transport
from ..workers.sources.data_identity import KnownData
from ..workers.sources.dead_letter import checked_path
from ..workers.sources.interface import DEFAULT_COST, Source, as_source, source_name
from .balanced.arguments import (
    check_decode_threads,
    check_plan,
    find_resources,
    make_plan,
    said_or_adopted,
)
from .balanced.fetching import MicrobatchSource
from .balanced.late import LateBalancedLoader
from .balanced.microbatches import BalancedLoader
from .balanced.spare import SpareSample
from .collate.chosen import BatchMaker, WantedFields
from .local.loop import LocalLoop, LocalSettings
from .local.workers import WorkerStart
from .remote_dataset import RemoteDataset
from .step.labels import find_label_source
from .step.ranks import Place, RankArguments

if TYPE_CHECKING:
    from .auto.choice import Choice

logger = logging.getLogger(__name__)
DEFAULT_PREFETCH = 2
UNKNOWN = tuple(DEFAULT_COST)
# Groupings that look at no cost.
COSTLESS = ("fixed", "random")


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
    on_error: str
    dead_letter: str | None
    max_errors: float | None
    buffer_bytes: int
    growing_data: bool
    transport: Transport
    fields: WantedFields
    decode_threads: int
    worker_restarts: int = 0


@dataclass(frozen=True, slots=True)
class TorchArguments:
    """The torch arguments that a balanced loader needs; copied, so that no cycle is made."""

    dataset: Any
    batch_size: int | None
    drop_last: bool
    start: WorkerStart
    prefetch_factor: int | None
    timeout: float


@dataclass(frozen=True, slots=True)
class BalancedSettings:
    """All that a balanced loader is made of, but its ranks."""

    torch: TorchArguments
    given: BalancedArguments
    source: Source | None
    resources: tuple[str, ...]
    batches: BatchMaker
    takes_empty: bool
    label_tokens: str

    def tell_unknown_costs(self, place: Place) -> None:
        """Log, on rank 0, that samples count alike because nobody said what they cost."""
        balance = self.given.balance
        if self.resources != UNKNOWN or 0 not in place.played or balance.grouping in COSTLESS:
            return
        logger.warning(
            "nothing is balanced: what a sample of this %s costs is not known, and each counts as "
            "1; give DataLoader(cost=...), a function from a sample to its costs or a table of "
            "them, or a dataset with probe(index)",
            type(self.torch.dataset).__name__,
        )

    def make(self, place: Place, waits: Waits | None) -> BalancedLoader:
        """Return the balanced loader of a place; ValueError for what its ranks cannot do."""
        self.tell_unknown_costs(place)
        plan = make_plan(
            said_or_adopted(self.given.balance, waits),
            resources=self.resources,
            ranks=place.ranks,
            batch_size=self.torch.batch_size,
            drop_last=self.torch.drop_last,
            empty_microbatches=self.takes_empty,
        )
        return self.make_planned(plan, place)

    def make_planned(self, plan: PlanConfig, place: Place, auto: str = "") -> BalancedLoader:
        """Return the balanced loader of a plan; `auto` is what balance="auto" has found for it."""
        torch, given, source = self.torch, self.given, self.source
        spare = None
        if plan.empty_microbatches and not self.takes_empty and source is not None:
            spare = SpareSample(source, plan.seed, given.shuffle)
        if source is not None and len(source) < place.ranks:
            raise ValueError(
                f"{len(source)} samples cannot feed {place.ranks} ranks: use fewer ranks"
            )
        job = _job(torch.dataset, plan, given, self.label_tokens)
        return BalancedLoader(
            job=job,
            ranks=place.played,
            connect=self._connection(job, place),
            batches=replace(self.batches, pins=False) if self._pins_ahead(place) else self.batches,
            timeout_s=torch.timeout or None,
            dead_letter=given.dead_letter,
            max_errors=given.max_errors,
            local=given.balancer is None,
            name=source_name(torch.dataset),
            data=_known_data(torch.dataset, source),
            growing=given.growing_data,
            shifts_labels=given.balance.layout != "torch",
            auto=auto,
            spare=spare,
        )

    def _is_local(self, place: Place) -> bool:
        """Return whether workers of this process load and collate what the plan gives them."""
        has_data = self.source is not None
        return has_data and self.given.balancer is None and place.sharers == 1

    def _pins_ahead(self, place: Place) -> bool:
        """Return whether torch's own thread pins batches: those of a local loop's workers."""
        return self._is_local(place) and self.torch.start.workers > 0

    def _connection(self, job: JobSpec, place: Place) -> Callable[[], MicrobatchSource]:
        """Return what makes the connection: the local loop, or the way to a balancer."""
        torch, given, source = self.torch, self.given, self.source
        if source is None or not self._is_local(place):
            return _way_to_balancer(torch, given, job, source, place)
        made = given.collate_fn or default_collate
        settings = LocalSettings(
            job=job,
            dataset=torch.dataset,
            source=source,
            place=place,
            start=torch.start,
            collate=self.batches.in_worker,
            takes_empty=self.takes_empty,
            draws=given.balance.layout == "torch" and made is not default_collate,
            prefetch=torch.prefetch_factor or DEFAULT_PREFETCH,
            transport=given.transport,
            name=given.name,
            timeout_s=torch.timeout or None,
        )
        return partial(LocalLoop, settings)


def prepare_balanced(loader: TorchDataLoader[Any], given: BalancedArguments) -> LateBalancedLoader:
    """Return what makes the balanced loader behind `loader` when its ranks are needed.

    Starts no process, opens no connection and looks at no rank. Raises ValueError for arguments
    that contradict each other, or that the data cannot meet.
    """
    if given.keys is not None and given.balancer is None:
        raise ValueError("keys are for a standalone balancer: give its address too, balancer=")
    checked_path(given.dead_letter)
    remote = isinstance(loader.dataset, RemoteDataset)
    source = None if remote else as_source(loader.dataset, given.cost, given.key)
    check_decode_threads(given.decode_threads, given.balancer, loader.num_workers, source)
    if given.balance.grouping == "auto":
        return _prepare_auto(loader, given, source)
    resources = find_resources(source, given.balance)
    check_plan(
        given.balance,
        resources=resources,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
    )
    make = _settings(loader, given, source, resources).make
    return LateBalancedLoader(given.ranks, make, follows=given.follows)


def _settings(
    loader: TorchDataLoader[Any],
    given: BalancedArguments,
    source: Source | None,
    resources: tuple[str, ...],
) -> BalancedSettings:
    pins = loader.pin_memory and torch.accelerator.is_available()
    batches = BatchMaker(given.balance, given.collate_fn, given.fields, pins)
    takes_empty = given.balance.layout != "torch"
    if given.balance.grouping != "auto":  # which tries collate_fn in a worker only
        takes_empty = takes_empty or _takes_nothing(given.collate_fn)
    torch_arguments = _torch_arguments(loader, given.decode_threads, given.worker_restarts)
    # balance="auto" reads no sample here, and finds its resources later
    labels = given.balance.label_tokens or LABEL_TOKENS
    if given.balance.grouping != "auto":
        labels = find_label_source(source, given.balance, resources, given.collate_fn)
    return BalancedSettings(torch_arguments, given, source, resources, batches, takes_empty, labels)


def _prepare_auto(
    loader: TorchDataLoader[Any], given: BalancedArguments, source: Source | None
) -> LateBalancedLoader:
    """Return what finds costs and work when the ranks are needed, and then makes the loader."""
    # here: who says what to balance needs nothing of it
    from .auto.choice import source_of
    from .auto.late import AutoSettings, LateAutoLoader

    whole = _settings(loader, given, source, ())
    dataset, key = whole.torch.dataset, given.key

    def build(choice: "Choice", balance: Balance, plan: PlanConfig, place: Place) -> BalancedLoader:
        source = source_of(choice, whole.source, dataset, key)
        resolved = replace(given, balance=balance)
        settings = replace(whole, given=resolved, source=source, resources=plan.resources)
        return settings.make_planned(plan, place, choice.to_json())

    settings = AutoSettings(
        balance=given.balance,
        source=source,
        dataset=dataset,
        key=key,
        collate=given.collate_fn or default_collate,
        batch_size=loader.batch_size or 1,
        drop_last=loader.drop_last,
        shuffle=given.shuffle,
        buffer_bytes=given.buffer_bytes,
        name=given.name,
        standalone=given.balancer is not None,
        context=whole.torch.start.context,
        begin=whole.torch.start.begin,
        build=build,
    )
    return LateAutoLoader(given.ranks, settings, given.follows)


def _job(dataset: Any, plan: PlanConfig, given: BalancedArguments, label_tokens: str) -> JobSpec:
    return JobSpec(
        plan=plan,
        source=_description(dataset) if given.balancer else {},
        shuffle=given.shuffle,
        on_error=given.on_error,
        buffer_bytes=given.buffer_bytes,
        label_tokens=label_tokens,
    )


def _known_data(dataset: Any, source: Source | None) -> Callable[[], KnownData]:
    """Return what tells which data a loader has, as they are when it is asked."""
    if source is None:
        return lambda: KnownData(dataset, None)
    return lambda: KnownData(dataset, len(source), source.key)


def _torch_arguments(loader: TorchDataLoader[Any], threads: int, restarts: int) -> TorchArguments:
    context: Any = loader.multiprocessing_context
    begin = loader.worker_init_fn if loader.num_workers else None
    return TorchArguments(
        dataset=loader.dataset,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        start=WorkerStart(
            loader.num_workers,
            loader.persistent_workers,
            context,
            begin,
            threads,
            loader.pin_memory,
            restarts if loader.num_workers else 0,
        ),
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
    )


def _way_to_balancer(
    torch: TorchArguments,
    given: BalancedArguments,
    job: JobSpec,
    source: Source | None,
    place: Place,
) -> Callable[[], MicrobatchSource]:
    """Return what connects to a balancer; ValueError for keys that are not a trainer's.

    Only here: who has none loads nothing of ZeroMQ.
    """
    from ..balancer.transport.keys import peer_keys
    from .connect.factory import ConnectionFactory

    factory = ConnectionFactory(
        job=job,
        source=source,
        place=place,
        start=torch.start,
        prefetch=torch.prefetch_factor or DEFAULT_PREFETCH,
        balancer=given.balancer,
        keys=peer_keys(Path(given.keys), "trainer") if given.keys is not None else None,
        name=given.name,
        transport=given.transport,
    )
    return factory.connect


def _description(dataset: Any) -> dict[str, Any]:
    if not hasattr(dataset, "spec"):
        raise ValueError(
            f"workers elsewhere cannot read a {type(dataset).__name__}: give a TarDataset, or a "
            "RemoteDataset for files that only they can see"
        )
    described: dict[str, Any] = dataset.spec()
    return described


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
