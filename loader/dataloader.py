"""`DataLoader`: torch's, with our workers behind it, and balanced where it is asked to be.

Without `balance` it yields exactly what torch's yields. With it, microbatches come as planned over
all data-parallel ranks: `for batch in loader`, or whole steps from `loader.steps()`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils.data as torch_data
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ..balancer.protocol.error_policy import BALANCED, checked_on_error
from ..balancer.protocol.job_spec import JobSpec
from ..balancer.transport.keys import peer_keys
from ..workers.sources.interface import as_source
from .balanced.arguments import checked_max_errors, find_resources, make_plan
from .balanced.microbatches import BalancedLoader, Delivered
from .collate.buffers import BufferPool
from .collate.layouts import find_layout
from .connect.factory import ConnectionFactory
from .plain import PlainIterator, TolerantIterator
from .remote_dataset import RemoteDataset
from .resume.plain_position import PlainState
from .step.info import Step, StepInfo
from .step.skipped import make_left_out
from .step.topology import find_ranks

DEFAULT_PREFETCH = 2


class DataLoader(torch_data.DataLoader[Any]):
    """A drop-in for torch.utils.data.DataLoader; the keyword-only arguments are new.

    balance: how samples are grouped into microbatches: "balanced", "isf", "fixed" (batch_size
    samples each), or another grouping of counterpoise.balancer; None for torch's own behaviour.
    budgets: the most of each resource that a microbatch may hold, such as {"tokens": 4096}.
    samples_per_step: samples of a global batch; accumulate: microbatches per rank and step, or
    "auto" for as many as the budgets need. partition, ordering, mode, oversize, seed: see
    counterpoise.balancer.PlanConfig. layout: "torch" (collate_fn), "padded" or "packed"; pad_id
    and dummy_tile belong to it. rank, ranks: found from torch.distributed, or given;
    virtual_ranks: this process plays them all. cost, key: measure and name samples of a plain
    dataset. balancer: the address of a standalone one; keys: the folder of this trainer's keys
    (counterpoise keygen), if it wants them. buffer_bytes: the most decoded bytes held.

    on_error, with or without balance: "raise"; "skip" leaves samples that cannot be used out;
    "refill" (an IterableDataset without balance) takes the next of the stream instead. They are
    written to dead_letter (a JSON line each) and counted in left_out: at most max_errors in an
    epoch (a float is a part of its samples).

    Raises ValueError for arguments that contradict each other.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        balance: str | None = None,
        budgets: Mapping[str, int] | None = None,
        samples_per_step: int | None = None,
        accumulate: int | Literal["auto"] = 1,
        partition: str = "greedy",
        ordering: str = "given",
        mode: str = "exact",
        oversize: str = "alone",
        seed: int = 0,
        layout: str = "torch",
        pad_id: int = 0,
        dummy_tile: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
        virtual_ranks: int | None = None,
        cost: Any = None,
        key: Callable[[int], str] | None = None,
        balancer: str | None = None,
        keys: str | Path | None = None,
        on_error: str = "raise",
        dead_letter: str | None = None,
        max_errors: float | None = None,
        buffer_bytes: int = 1 << 30,
    ) -> None:
        self._balanced: BalancedLoader | None = None
        allowed = checked_max_errors(max_errors, on_error)
        if balance is None:
            left_out = make_left_out(dataset, batch_size, on_error, dead_letter, allowed)
            self._plain = PlainState(left_out)
        else:
            checked_on_error(on_error, no_refill=BALANCED)
            self._plain = PlainState()
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle if balance is None else False,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if balance is None:
            _refuse_without_balance(
                budgets=budgets,
                samples_per_step=samples_per_step,
                balancer=balancer,
                keys=keys,
                cost=cost,
            )
            return
        if sampler is not None or batch_sampler is not None:
            raise ValueError("a balanced loader plans its own order: leave sampler, batch_sampler")
        if generator is not None or worker_init_fn is not None:
            raise ValueError(
                "what is random in a balanced loader follows from seed, epoch and key: give seed= "
                "instead of generator and worker_init_fn"
            )
        if keys is not None and balancer is None:
            raise ValueError("keys are for a standalone balancer: give its address too, balancer=")
        played, world = find_ranks(rank, ranks, virtual_ranks)
        source = None if isinstance(dataset, RemoteDataset) else as_source(dataset, cost, key)
        plan = make_plan(
            balance=balance,
            resources=find_resources(source, budgets),
            ranks=world,
            batch_size=batch_size,
            samples_per_step=samples_per_step,
            accumulate=accumulate,
            budgets=budgets,
            partition=partition,
            ordering=ordering,
            mode=mode,
            oversize=oversize,
            seed=seed,
            drop_last=drop_last,
        )
        if source is not None and len(source) < world:
            raise ValueError(f"{len(source)} samples cannot feed {world} ranks: use fewer ranks")
        job = JobSpec(
            source=_description(dataset) if balancer else {},
            plan=plan,
            shuffle=True if shuffle is None else shuffle,
            on_error=on_error,
            buffer_bytes=buffer_bytes,
        )
        self._balanced = BalancedLoader(
            job=job,
            plan=plan,
            ranks=played,
            connect=ConnectionFactory(
                job=job,
                source=source,
                played=played,
                workers=num_workers,
                prefetch=prefetch_factor or DEFAULT_PREFETCH,
                method="fork" if _wants_fork(self.multiprocessing_context) else "forkserver",
                balancer=balancer,
                keys=peer_keys(Path(keys), "trainer") if keys is not None else None,
            ).connect,
            collate=_pinning(pin_memory, _collating(layout, collate_fn, pad_id, dummy_tile)),
            timeout_s=timeout or None,
            dead_letter=dead_letter,
            max_errors=allowed,
            local=balancer is None,
            name=str(getattr(dataset, "pattern", type(dataset).__name__)),
        )

    def __iter__(self) -> Any:
        """Return an iterator over batches; balanced, over this process' microbatches."""
        if self._balanced is None:
            iterator = super().__iter__()
            self._plain.started(iterator)
            return iterator
        return _BatchIterator(self._balanced.microbatches(), self)

    def __len__(self) -> int:
        """Return the number of batches; TypeError where it is not known beforehand."""
        if self._balanced is None:
            return super().__len__()
        accumulate = self._balanced.plan.accumulate
        if accumulate == "auto":
            raise TypeError('with accumulate="auto" the number of microbatches is not known')
        return self.num_steps * accumulate * len(self._balanced.ranks)

    @property
    def num_steps(self) -> int:
        """Optimizer steps in an epoch; TypeError where groups decide it (modes but exact)."""
        balanced = self._need_balance("num_steps")
        if balanced.plan.mode != "exact":
            raise TypeError(f"in mode {balanced.plan.mode!r} the number of steps is not known")
        dataset: Any = self.dataset
        count = balanced.count() if isinstance(dataset, RemoteDataset) else len(dataset)
        whole, rest = divmod(count, balanced.plan.samples_per_step)
        return whole + bool(rest and not balanced.plan.drop_last)

    def steps(self) -> Iterator[Step]:
        """Return an iterator over whole steps, each with all microbatches and their StepInfo."""
        return self._need_balance("steps()").steps()

    @property
    def step_info(self) -> StepInfo | None:
        """What there is to say about the microbatch handed out last; None without balancing."""
        return self._info

    _info: StepInfo | None = None

    @property
    def left_out(self) -> int:
        """Samples of this epoch, so far, that on_error has left out."""
        if self._balanced is not None:
            return self._balanced.left_out
        return 0 if self._plain.left_out is None else self._plain.left_out.count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; without balancing, the sampler's, if it has one."""
        if self._balanced is not None:
            self._balanced.set_epoch(epoch)
            return
        samplers: tuple[Any, ...] = (self.batch_sampler, self.sampler)
        for each in samplers:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger: what has been handed out, JSON-able, below 4 KB."""
        return self._balanced.state_dict() if self._balanced else self._plain.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger with the next iteration; ValueError if this loader cannot."""
        if self._balanced is not None:
            self._balanced.load_state_dict(state)
        else:
            self._plain.load_state_dict(self, state)

    def close(self) -> None:
        """End all processes of the loader; it can be used again afterwards."""
        if self._balanced is not None:
            self._balanced.close()
        self._iterator = None

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            tolerant = self._plain.left_out is not None
            return TolerantIterator(self) if tolerant else super()._get_iterator()
        self.check_worker_number_rationality()
        return PlainIterator(self)

    @property
    def _index_sampler(self) -> Any:
        return self._plain.following(self, super()._index_sampler)

    def _need_balance(self, what: str) -> BalancedLoader:
        if self._balanced is None:
            raise ValueError(f'{what} needs a balanced loader: give balance="balanced", say')
        return self._balanced


class _BatchIterator:
    """Hands out batches and keeps their StepInfo on the loader."""

    def __init__(self, delivered: Iterator[Delivered], loader: DataLoader) -> None:
        self._delivered = delivered
        self._loader = loader

    def __iter__(self) -> "_BatchIterator":
        return self

    def __next__(self) -> Any:
        delivered = next(self._delivered)
        self._loader._info = delivered.info
        return delivered.batch


def _refuse_without_balance(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f'{name} belongs to a balanced loader: give balance="balanced", say')


def _description(dataset: Any) -> dict[str, Any]:
    if not hasattr(dataset, "spec"):
        raise ValueError(
            f"workers elsewhere cannot read a {type(dataset).__name__}: give a TarDataset, or a "
            "RemoteDataset for files that only they can see"
        )
    described: dict[str, Any] = dataset.spec()
    return described


def _collating(
    layout: str, collate_fn: Callable[[list[Any]], Any] | None, pad_id: int, dummy_tile: int
) -> Callable[[list[Any]], Any]:
    if layout == "torch":
        return collate_fn or default_collate
    if collate_fn is not None:
        raise ValueError(f"collate_fn belongs to layout 'torch', not {layout!r}")
    collate, buffers = find_layout(layout), BufferPool()
    return lambda samples: collate(
        samples, pad_id=pad_id, dummy_tile=dummy_tile, allocate=buffers.take
    )


def _pinning(wanted: bool, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return collate, made to put its batches into pinned memory where there is an accelerator."""
    if not wanted or not torch.accelerator.is_available():
        return collate
    return lambda samples: pin(collate(samples))  # type: ignore[no-untyped-call]


def _wants_fork(context: Any) -> bool:
    return context is not None and context.get_start_method() == "fork"
