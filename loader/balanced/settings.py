"""What a balanced loader is made of: one record, of the plan's part and of this process'.

`BalancedArguments` are what the user has given; `LoaderSettings` adds what follows from it and the
data; `LoopSettings` is both parts, once the ranks of this process are known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

from ...balancer.planning.problem.balance import Balance
from ...balancer.protocol.job_spec import JobSpec
from ...workers.arena.transport import Transport
from ...workers.processes.start_method import start_method
from ...workers.sources.failures import OnError
from ...workers.sources.interface import Source
from ..collate.chosen import BatchMaker, WantedFields
from ..step.ranks import Place, RankArguments

if TYPE_CHECKING:
    from ...balancer.transport.keys import PeerKeys  # which loads ZeroMQ

DEFAULT_PREFETCH = 2


class Fleet(Protocol):
    """Workers on a cluster and their balancer, such as `cp.fleet.Ray`."""

    def join(self) -> "tuple[str, PeerKeys | None]":
        """Return the balancer's address, and the keys with which a trainer may come."""


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
    fleet: Fleet | None
    on_error: OnError
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


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The way in which a loader's workers are started; `context` is its multiprocessing_context.

    begin: its worker_init_fn, which each worker calls with its number. threads: its decode_threads.
    pins: whether torch's thread pins batches. restarts: how many dead workers an epoch replaces.
    stats: counts what the loop does; None: nobody asks.
    """

    workers: int
    persistent: bool = False
    context: BaseContext | None = None
    begin: Callable[[int], None] | None = None
    threads: int = 1
    pins: bool = False
    restarts: int = 0
    stats: Any = None

    @property
    def forks(self) -> bool:
        """True if processes are forked from the trainer, as torch would now."""
        return start_method(self.context) == "fork"


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """All that a balanced loader is made of, but its ranks; torch's arguments among it.

    They are copied, so that no cycle with the DataLoader is made. source: None where workers
    elsewhere have the data. prefetch: microbatches, or tasks of a worker, ahead of need. timeout_s:
    how long to wait for a microbatch, and for other ranks. takes_empty: whether collate_fn makes a
    batch of no samples.
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
    label_tokens: str = ""

    @classmethod
    def of_loader(
        cls, loader: TorchDataLoader[Any], given: BalancedArguments, **facts: Any
    ) -> "LoaderSettings":
        """Return the settings behind a loader; facts: those that are not an argument of torch's."""
        if given.dead_letter is not None:
            from ...workers.sources.dead_letters import checked_path

            checked_path(given.dead_letter)
        context: Any = loader.multiprocessing_context
        start = WorkerStart(
            loader.num_workers,
            loader.persistent_workers,
            context,
            loader.worker_init_fn if loader.num_workers else None,
            given.decode_threads,
            loader.pin_memory,
            given.worker_restarts if loader.num_workers else 0,
            given.stats,
        )
        return cls(
            given=given,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            start=start,
            prefetch=loader.prefetch_factor or DEFAULT_PREFETCH,
            timeout_s=loader.timeout or None,
            **facts,
        )


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What a loop is made of, in two parts.

    job: the plan's part, the same on all ranks. It is JSON: workers and balancers elsewhere have
    it, and a ledger its digest. local: what only this process has, such as functions. place: the
    ranks that this process plays.
    """

    job: JobSpec
    local: LoaderSettings
    place: Place
