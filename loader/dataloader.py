"""`DataLoader`: torch's, and balanced where it is asked to be.

Without `balance` it yields exactly what torch's yields. With it, microbatches come as planned over
all data-parallel ranks: `for batch in loader`, or whole steps from `loader.steps()`.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch.utils.data as torch_data

from ..workers.arena.transport import Transport, checked_transport
from ..workers.batches.envelope import is_stateful
from ..workers.sources.failures import BALANCED, OnError, checked_on_error
from ..workers.sources.interface import Source
from ..workers.sources.offered import reads_stores
from .adapters.recognition import RecognisedLoader
from .metrics.measured import MeasuredLoader
from .plain.iterators import InlineIterator, WorkersIterator
from .plain.order import is_stream
from .plain.skipped import make_left_out
from .plain.state import PlainState
from .refused_arguments import (
    BUFFER_BYTES,
    checked_max_errors,
    checked_restarts,
    is_packed_stream,
    named_fleet,
    plain_restarts,
    refuse_moved_arguments,
    refuse_no_samples,
    refuse_without_balance,
    refuse_without_policy,
)
from .step.info import BatchT, Step, StepInfo

# Where there is a `balance`, methods import .balancing: a plain loop needs nothing of it.
if TYPE_CHECKING:
    from ..balancer.planning.problem.balance import Balance
    from ..balancer.planning.problem.options import GroupingName
    from .balanced.followed_costs import MeasuredCosts
    from .balanced.microbatches import BalancedLoader
    from .balanced.settings import BalancedArguments, Fleet
    from .collate.chosen import WantedFields
    from .late import LateBalancedLoader

if TYPE_CHECKING:
    # torch's is generic too; most people write no parameter.
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", covariant=True, default=Any)

    class TypedLoader(torch_data.DataLoader[T], Generic[T, BatchT]):
        """torch's DataLoader with two types for checkers: of the samples, and of the batches.

        What collate_fn returns is the type of the batches. Both may be written, as in
        DataLoader[int, Batch], and neither has to be: both are Any then.
        """

else:
    T = TypeVar("T", covariant=True)

    class TypedLoader(torch_data.DataLoader[T]):
        """torch's DataLoader, which takes a second parameter and drops it."""

        def __class_getitem__(cls, types: Any) -> Any:
            """Return the alias of the first type."""
            return super().__class_getitem__(types[0] if isinstance(types, tuple) else types)


# Batches of a worker, ahead of need, that are read from a store: requests are slow, and many at a
# time are as slow as one.
STORE_PREFETCH = 8


class DataLoader(RecognisedLoader, MeasuredLoader, TypedLoader[T, BatchT]):
    """A drop-in for torch.utils.data.DataLoader; these keyword-only arguments are new.

    balance        how samples become microbatches and steps: a counterpoise.Balance, or the name
                   of a grouping, such as "balanced"; None for torch's own behaviour. With it,
                   shuffle must be given; False keeps the data's order. Streams: streams.md
    rank, ranks    this process' data-parallel rank, and their number; by default
                   torch.distributed's, or 0 of 1
    virtual_ranks  this process plays that many ranks, in place of rank and ranks
    process_group  the data-parallel process group, as in DDP; by default all processes
    topology       which processes share a data-parallel rank: a DeviceMesh with named dimensions,
                   their sizes such as {"dp": 2, "tp": 2}, a cp.Topology, a pipeline's Units
    name           tells loaders over the same data apart that not all processes open
    cost           a function from a sample to its costs, or a table of them, for a plain dataset
    key            a function from a sample's index to its name, for a plain dataset
    balancer       the address of a `counterpoise balancer`; by default COUNTERPOISE_BALANCER's
    job            this run's name there, by default torchrun's, Slurm's or Ray's run id
    keys           the folder with this trainer's keys (`counterpoise keygen`), if it wants them
    fleet          workers on a cluster, and their balancer: `cp.fleet.Ray(workers=(4, 64))`
    buffer_bytes   the most bytes of samples made ahead of need, here or by a balancer
    on_error       what a sample that cannot be used does, balanced or not: "raise"; "skip" leaves
                   it out; "refill" (a stream without balance) takes the next in its place
    dead_letter    a file that gets a JSON line for each sample left out
    max_errors     the most samples that an epoch may leave out: a count, or a float, part of them
    growing_data   load_state_dict() takes a state of the data when they had fewer samples: between
                   epochs, or in the data's order; otherwise other data are refused
    transport      how batches come here: "arena", shared memory that is used again; "direct", from
                   the workers of a balancer; "inline", torch's way, or through the balancer;
                   "auto", the first of these that can be had
    fields         of batches, what this process needs: names, or a function from a StepInfo to
                   them, such as `pipe.needs`; others are not copied. None for all
    skip_keys      keys (StepInfo.keys) of samples to leave out of the plan as it is: they are holes
    worker_restarts  workers that have died are replaced so often in an epoch; who kills three is
                   left out. By default 0; 3 with on_error="skip". Not for streams, or with a state
    decode_threads threads that decode in each worker process; more than 1 is for data that say that
                   they are thread_safe, as a TarDataset without a transform, or VisionLanguage
    keep_stats     count waits and deliveries for stats(), report(), metrics(); a path: in a file

    Raises ValueError for arguments that contradict each other, or would have no effect.
    """

    @refuse_moved_arguments
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], BatchT] | None = None,
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
        balance: "Balance | GroupingName | None" = None,
        rank: int | None = None,
        ranks: int | None = None,
        virtual_ranks: int | None = None,
        process_group: Any = None,
        topology: Any = None,
        name: str = "",
        cost: Any = None,
        key: Callable[[int], str] | None = None,
        balancer: str | None = None,
        job: str | None = None,
        keys: str | Path | None = None,
        fleet: "Fleet | None" = None,
        on_error: OnError = "raise",
        dead_letter: str | None = None,
        max_errors: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        growing_data: bool = False,
        transport: Transport = "auto",
        fields: "WantedFields" = None,
        decode_threads: int = 1,
        worker_restarts: int | None = None,
        skip_keys: Iterable[str] | None = None,
        keep_stats: bool | str | Path = False,
    ) -> None:
        refuse_no_samples(dataset, balance)
        balancer = named_fleet(fleet, balance, balancer, keys)
        reports = getattr(balance, "report", False)
        self._keep_stats(keep_stats or reports, name, reports)
        processor: Any = collate_fn
        if balance is not None and hasattr(processor, "over") and hasattr(dataset, "__len__"):
            # An HFProcessor: samples before they are batched, so costs are found without pixels.
            dataset = processor.over(dataset)
            is_own = getattr(balance, "layout", "torch") == "torch"
            collate_fn = processor.collate_samples if is_own else None
        # By the names of the parameters: Lightning makes plain loaders again from their attributes.
        self.growing_data, self.on_error, self.dead_letter = growing_data, on_error, dead_letter
        self.max_errors, self.transport = max_errors, checked_transport(transport, balancer)
        self.worker_restarts, self.skip_keys = worker_restarts, skip_keys
        self._restarts = checked_restarts(worker_restarts, on_error, transport)
        if balance is None or is_packed_stream(dataset):
            self._restarts = plain_restarts(worker_restarts, self._restarts, dataset, num_workers)
        self._late: LateBalancedLoader | None = None
        self._given: BalancedArguments | None = None
        allowed = checked_max_errors(max_errors, on_error)
        refuse_without_policy(on_error, dead_letter)
        if balance is None:
            left_out = make_left_out(
                dataset, batch_size, on_error, dead_letter, allowed, self._stats
            )
            self._plain = PlainState(left_out)
        else:
            checked_on_error(on_error, no_refill=BALANCED)
            self._plain = PlainState()
        if prefetch_factor is None and num_workers and balancer is None and reads_stores(dataset):
            prefetch_factor = STORE_PREFETCH
        # A balanced loader shuffles in its plan: torch's own sampler would only be in the way.
        super().__init__(
            dataset, batch_size, shuffle if balance is None else False, sampler, batch_sampler,
            num_workers, collate_fn, pin_memory, drop_last, timeout, worker_init_fn,
            multiprocessing_context, generator, prefetch_factor=prefetch_factor, in_order=in_order,
            persistent_workers=persistent_workers, pin_memory_device=pin_memory_device,
        )  # fmt: skip
        only_balanced: dict[str, Any] = {
            "balancer": balancer, "keys": keys, "cost": cost, "key": key, "rank": rank,
            "ranks": ranks, "virtual_ranks": virtual_ranks, "process_group": process_group,
            "topology": topology, "name": name, "fields": fields, "fleet": fleet,
            "skip_keys": skip_keys, "job": job, "buffer_bytes": buffer_bytes,
            "decode_threads": decode_threads,
        }  # fmt: skip
        if balance is None:
            refuse_without_balance(only_balanced)
            return
        from . import assembly, balancing

        self._given = assembly.read_arguments(
            dataset, batch_size, shuffle, sampler, batch_sampler, generator, balance=balance,
            collate_fn=collate_fn, on_error=on_error, dead_letter=dead_letter, max_errors=allowed,
            growing_data=growing_data, transport=transport, worker_restarts=self._restarts,
            stats=self._stats, **only_balanced,
        )  # fmt: skip
        self._late = balancing.prepare(self, self._given)

    @property
    def _balanced(self) -> "BalancedLoader | None":
        """The balanced loader, None without balance; made here, as it needs to know its ranks."""
        return None if self._late is None else self._late.get()

    def __iter__(self) -> Iterator[BatchT]:  # type: ignore[override]
        """Return an iterator over batches; balanced, over this process' microbatches."""
        self._reopen_changed_data()
        if self._stats is not None:
            self._stats.start()
        if self._late is None:
            if isinstance(self._iterator, WorkersIterator) and not self._iterator.is_own():
                self._iterator = None  # a forked child starts persistent workers of its own
            return self._timed(super().__iter__())
        from . import balancing

        return balancing.BatchIterator(self._late.get_at_iteration(), self)

    def __bool__(self) -> bool:
        """Return False for a loader that is known to have no batch; nothing is connected to."""
        try:
            return self._late is not None or len(self) > 0
        except TypeError:  # nobody knows
            return True

    def __len__(self) -> int:
        """Return the number of batches; TypeError where it is not known beforehand."""
        balanced = self._balanced
        if balanced is None:
            return super().__len__()
        if balanced.microbatches_per_step == "auto":
            raise TypeError('with accumulate="auto" the number of microbatches is not known')
        from . import balancing

        samples = balancing.count_samples(balanced, self.dataset)
        return balanced.plan.microbatches_of(samples) * len(balanced.ranks)

    @property
    def num_steps(self) -> int:
        """Optimizer steps in an epoch; TypeError where the plan decides it (modes but "exact")."""
        balanced = self._need_balance("num_steps")
        from . import balancing

        return balanced.plan.steps_of(balancing.count_samples(balanced, self.dataset))

    def steps(self) -> Iterator[Step[BatchT]]:
        """Return an iterator over whole steps, each with all microbatches and their StepInfo."""
        self._need_balance("steps()")
        self._reopen_changed_data()
        if self._stats is not None:
            self._stats.start()
        from .balanced.microbatches import Steps

        return Steps(self._late.get_at_iteration(), self)  # type: ignore[union-attr]

    def follow_costs(self, pipe: "MeasuredCosts") -> None:
        """Order microbatches by what a pipeline with `replan` measures: see pipeline-order.md."""
        self._refuse_plain("follow_costs()")
        self._late.follow_costs(pipe)  # type: ignore[union-attr]

    @property
    def is_balanced(self) -> bool:
        """Return True if batches are planned, with `balance`; else they are torch's."""
        return self._given is not None

    def with_info(self) -> "DataLoader[T, tuple[BatchT, StepInfo]]":
        """Return this loader as one of pairs: each batch with its StepInfo, whoever fetches ahead.

        Both are one loader, with one position: the iterator opened last is the one that goes on.
        """
        self._refuse_plain("with_info()")
        view: Any = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _in_pairs=True)  # past torch's guard of attributes
        return view  # type: ignore[no-any-return]

    @property
    def step_info(self) -> StepInfo | None:
        """The StepInfo of the microbatch returned last; None without balance.

        Where something fetches ahead that is not the one being trained on: see with_info().
        """
        return self._info

    _info: StepInfo | None = None
    _in_pairs = False

    @property
    def left_out(self) -> int:
        """Samples of this epoch, so far, that are left out; at its end also those of no step."""
        if self._late is not None:
            return self._late.made.left_out if self._late.made is not None else 0
        return 0 if self._plain.left_out is None else self._plain.left_out.count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; without balancing, the sampler's, or the data set's, if it has one."""
        samplers = [self.batch_sampler, self.sampler, getattr(self.batch_sampler, "sampler", None)]
        takers: list[Any] = [each for each in samplers if hasattr(each, "set_epoch")]
        if self._late is not None:
            self._late.set_epoch(epoch)
        elif takers:
            takers[0].set_epoch(epoch)
        elif not self._plain.set_epoch(self.dataset, epoch):
            self._iterator = None  # persistent workers have the data set as it was

    def state_dict(self, after: StepInfo | None = None) -> dict[str, Any]:
        """Return the ledger: what has been handed out, JSON-able, below 4 KB.

        That of a plain loop in a random order has its generators' states, up to 4 KB each.
        after: of a balanced loader, as it was when the batch with this StepInfo was handed out;
        what has been fetched ahead of training comes again then. ValueError for any other StepInfo.
        """
        if after is not None:
            return self._need_balance("state_dict(after=)").state_dict(after)
        return self._balanced.state_dict() if self._balanced else self._plain.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger with the next iteration; ValueError if this loader cannot.

        An iterator that was opened before says, at its next next(), that it is over.
        """
        self._reopen_changed_data()
        if self._late is not None:
            self._late.load_state_dict(state)
            return
        self._plain.load_state_dict(self, state, self.growing_data)
        if is_stream(self.dataset) or is_stateful(self.dataset):
            self._iterator = None  # persistent workers are elsewhere in the data

    def close(self) -> None:
        """End all processes of the loader; it can be used again afterwards."""
        if self._late is not None:
            self._late.close()
        self._iterator = None

    def _reopen_changed_data(self) -> None:
        """Index files again that changed; processes that know the former ones are ended."""
        if isinstance(self.dataset, Source) and self.dataset.reopen_if_changed():
            self.close()

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return InlineIterator(self, self._plain)
        self.check_worker_number_rationality()
        if self._restarts:
            from .plain.restarting import RestartingIterator  # here: few loaders need it

            return RestartingIterator(self, self._plain)
        return WorkersIterator(self, self._plain)

    def __getstate__(self) -> dict[str, Any]:
        """Return settings and position: a copy begins where this is, with workers of its own."""
        plain = self._plain.snapshot(self)
        state = {**self.__dict__, "_iterator": None, "_info": None, "_plain": plain}
        if self._late is None:
            return state
        state["sampler"] = state["batch_sampler"] = None  # they know the one that is copied
        return {**state, "_late": self._late.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._given is not None:
            from . import balancing

            self._late = balancing.prepare(self, self._given)
            self._late.restore(state["_late"])

    def _need_balance(self, what: str) -> "BalancedLoader":
        self._refuse_plain(what)
        return self._balanced  # type: ignore[return-value]

    def _refuse_plain(self, what: str) -> None:
        if not self.is_balanced:
            raise ValueError(f'{what} needs a balanced loader: give balance="balanced", say')
