"""What a balanced loader is made of: one record, of the plan's part and of this process'.

`BalancedArguments` are what the user has given; `LoaderSettings` adds what follows from it and the
data; `LoopSettings` is both parts, once the ranks of this process are known.
"""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader as TorchDataLoader, DistributedSampler

from ...balancer.near_names import explain_arguments
from ...balancer.planning.problem.balance import Balance
from ...balancer.protocol.job_spec import JobSpec
from ...workers.processes.start_method import start_method
from ...workers.sources.interface import Source
from ..collate.chosen import BatchMaker, WantedFields
from ..on_error import OnError
from ..step.ranks import Place, Ranks

if TYPE_CHECKING:
    from ...balancer.transport.keys import PeerKeys  # which loads ZeroMQ

DEFAULT_PREFETCH = 2


class Fleet(Protocol):
    """Workers on a cluster and their balancer, such as `cp.fleet.Ray`."""

    def join(self) -> "tuple[str, PeerKeys | None]":
        """Return the balancer's address, and the keys with which a trainer may come."""


@explain_arguments()
@dataclass(frozen=True, slots=True)
class Balancer:
    """A balancer elsewhere, and how this run comes to it; wrong values raise ValueError.

    Args:
        address: That of a `counterpoise balancer`, or workers on a cluster that bring theirs, such
            as `cp.fleet.Ray(workers=(4, 64))`; default COUNTERPOISE_BALANCER's.
        job: This run's name there; default torchrun's, Slurm's or Ray's run id.
        keys: The folder with this trainer's keys (`counterpoise keygen`); default: none is needed.
    """

    address: str | Fleet | None = None
    _: KW_ONLY
    job: str | None = None
    keys: str | Path | None = None

    def __post_init__(self) -> None:
        if self.address is None or isinstance(self.address, str):
            return
        if isinstance(self.address, type) or not hasattr(self.address, "join"):
            raise ValueError(
                f"balancer is {self.address!r:.80}: give an address such as 'tcp://HOST:PORT', or "
                "a fleet, cp.fleet.Ray(workers=(4, 64)), say"
            )
        if self.keys is not None:
            raise ValueError(
                f"keys is {str(self.keys)!r:.80}, and a fleet brings its balancer's keys: leave "
                "keys, or give the address of a balancer"
            )


def as_balancer(balancer: "Balancer | Fleet | str | None", has_spec: bool) -> Balancer:
    """Return a Balancer; an address or a fleet is short for it.

    has_spec: workers elsewhere can open the data, so that the environment may name a balancer.
    """
    balancer = balancer if isinstance(balancer, Balancer) else Balancer(balancer)
    if balancer.address is None and has_spec:
        balancer = replace(balancer, address=os.environ.get("COUNTERPOISE_BALANCER") or None)
    if balancer.keys is not None and balancer.address is None:
        raise ValueError(
            f"Balancer(keys={str(balancer.keys)!r:.80}) is for a balancer elsewhere, and no "
            "address is given: give balancer=Balancer('tcp://HOST:PORT', keys=...)"
        )
    return balancer


@dataclass(frozen=True, slots=True)
class BalancedArguments:
    """DataLoader's arguments that torch's does not have, or that mean more when balanced."""

    balance: Balance
    shuffle: bool
    collate_fn: Callable[[list[Any]], Any] | None
    ranks: Ranks
    follows: DistributedSampler[Any] | None
    cost: Any
    key: Callable[[int], str] | None
    balancer: Balancer
    on_error: OnError
    buffer_bytes: int
    growing_data: bool
    fields: WantedFields
    decode_threads: int
    restarts: int = 0
    skip_keys: frozenset[str] | None = None
    stats: Any = None


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The way in which a loader's workers are started; `context` is its multiprocessing_context.

    begin: its worker_init_fn, which each worker calls with its number. threads: its decode_threads.
    pins: whether torch's thread pins batches. restarts: how many dead workers an epoch replaces.
    stats: counts what the loop does, if that is asked for.
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

    arguments: BalancedArguments
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
    def from_loader(
        cls, loader: TorchDataLoader[Any], arguments: BalancedArguments, **facts: Any
    ) -> "LoaderSettings":
        """Return the settings behind a loader; facts: those that are not an argument of torch's."""
        if (dead_letter := arguments.on_error.dead_letter) is not None:
            from ...workers.sources.dead_letters import checked_path

            checked_path(dead_letter)
        context: Any = loader.multiprocessing_context
        start = WorkerStart(
            loader.num_workers, loader.persistent_workers, context,
            loader.worker_init_fn if loader.num_workers else None, arguments.decode_threads,
            loader.pin_memory, arguments.restarts if loader.num_workers else 0, arguments.stats,
        )  # fmt: skip
        return cls(
            arguments=arguments, batch_size=loader.batch_size, drop_last=loader.drop_last,
            start=start, prefetch=loader.prefetch_factor or DEFAULT_PREFETCH,
            timeout_s=loader.timeout or None, **facts,
        )  # fmt: skip


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
