"""Builds the balanced part of a DataLoader: job, connection and collate function."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ..balancer.planning.problem.balance import Balance
from ..balancer.planning.problem.config import PlanConfig
from ..balancer.protocol.job_spec import JobSpec
from ..balancer.transport.keys import peer_keys
from ..workers.sources.interface import Source, as_source
from .balanced.arguments import find_resources, make_plan
from .balanced.microbatches import BalancedLoader, Collate
from .collate.buffers import BufferPool
from .collate.layouts import COLLATE_BY_LAYOUT
from .connect.embedded import WorkerStart
from .connect.factory import ConnectionFactory
from .remote_dataset import RemoteDataset
from .step.topology import find_ranks

DEFAULT_PREFETCH = 2


@dataclass(frozen=True, slots=True)
class BalancedArguments:
    """DataLoader's arguments that torch's does not have, or that mean more when balanced."""

    balance: Balance
    shuffle: bool | None
    collate_fn: Callable[[list[Any]], Any] | None
    rank: int | None
    ranks: int | None
    virtual_ranks: int | None
    cost: Any
    key: Callable[[int], str] | None
    balancer: str | None
    keys: str | Path | None
    on_error: str
    dead_letter: str | None
    max_errors: float | None
    buffer_bytes: int


def build_balanced(loader: TorchDataLoader[Any], given: BalancedArguments) -> BalancedLoader:
    """Return the balanced loader behind `loader`, whose torch arguments are read from it.

    Starts no process and opens no connection. Raises ValueError for arguments that contradict
    each other, or that the data cannot meet.
    """
    played, world = find_ranks(given.rank, given.ranks, given.virtual_ranks)
    dataset = loader.dataset
    remote = isinstance(dataset, RemoteDataset)
    source = None if remote else as_source(dataset, given.cost, given.key)
    plan = make_plan(
        given.balance,
        resources=find_resources(source, given.balance),
        ranks=world,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
    )
    if source is not None and len(source) < world:
        raise ValueError(f"{len(source)} samples cannot feed {world} ranks: use fewer ranks")
    job = _job(dataset, plan, given)
    return BalancedLoader(
        job=job,
        plan=plan,
        ranks=played,
        connect=_connection(loader, given, job, source, played).connect,
        collate=_pinned(loader.pin_memory, _collate(given.balance, given.collate_fn)),
        timeout_s=loader.timeout or None,
        dead_letter=given.dead_letter,
        max_errors=given.max_errors,
        local=given.balancer is None,
        name=str(getattr(dataset, "pattern", type(dataset).__name__)),
    )


def refuse_own_order(sampler: Any, batch_sampler: Any, worker_init_fn: Any, generator: Any) -> None:
    """Raise ValueError for torch's arguments that a balanced loader decides about."""
    if sampler is not None or batch_sampler is not None:
        raise ValueError("a balanced loader plans its own order: leave sampler, batch_sampler")
    if generator is not None or worker_init_fn is not None:
        raise ValueError(
            "what is random in a balanced loader follows from seed, epoch and key: give "
            "Balance(seed=) instead of generator and worker_init_fn"
        )


def refuse_without_balance(**given: Any) -> None:
    """Raise ValueError for arguments that only a balanced loader has."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f'{name} needs a balanced loader: give balance="balanced", say')


def _job(dataset: Any, plan: PlanConfig, given: BalancedArguments) -> JobSpec:
    return JobSpec(
        source=_description(dataset) if given.balancer else {},
        plan=plan,
        shuffle=True if given.shuffle is None else given.shuffle,
        on_error=given.on_error,
        buffer_bytes=given.buffer_bytes,
    )


def _connection(
    loader: TorchDataLoader[Any],
    given: BalancedArguments,
    job: JobSpec,
    source: Source | None,
    played: tuple[int, ...],
) -> ConnectionFactory:
    if given.keys is not None and given.balancer is None:
        raise ValueError("keys are for a standalone balancer: give its address too, balancer=")
    context: Any = loader.multiprocessing_context
    return ConnectionFactory(
        job=job,
        source=source,
        played=played,
        start=WorkerStart(loader.num_workers, loader.persistent_workers, context),
        prefetch=loader.prefetch_factor or DEFAULT_PREFETCH,
        balancer=given.balancer,
        keys=peer_keys(Path(given.keys), "trainer") if given.keys is not None else None,
    )


def _description(dataset: Any) -> dict[str, Any]:
    if not hasattr(dataset, "spec"):
        raise ValueError(
            f"workers elsewhere cannot read a {type(dataset).__name__}: give a TarDataset, or a "
            "RemoteDataset for files that only they can see"
        )
    described: dict[str, Any] = dataset.spec()
    return described


def _collate(balance: Balance, collate_fn: Callable[[list[Any]], Any] | None) -> Collate:
    if balance.layout == "torch":
        return collate_fn or default_collate
    if collate_fn is not None:
        raise ValueError(f"collate_fn belongs to layout 'torch', not {balance.layout!r}")
    collate, buffers = COLLATE_BY_LAYOUT[balance.layout], BufferPool()
    return lambda samples: collate(
        samples, pad_id=balance.pad_id, dummy_tile=balance.dummy_tile, allocate=buffers.take
    )


def _pinned(wanted: bool, collate: Collate) -> Collate:
    """Return collate, made to put its batches into pinned memory if there is an accelerator."""
    if not wanted or not torch.accelerator.is_available():
        return collate
    return lambda samples: pin(collate(samples))  # type: ignore[no-untyped-call]
