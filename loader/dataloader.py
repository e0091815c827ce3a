"""`DataLoader`: torch's, and balanced where it is asked to be.

Without `balance` it yields exactly what torch's yields. With it, microbatches come as planned over
all data-parallel ranks: `for batch in loader`, or whole steps from `loader.steps()`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch.utils.data as torch_data

from ..balancer.near_names import explain_arguments
from ..workers.batches.envelope import is_stateful
from ..workers.sources.failures import BALANCED, ErrorAction, refuse_refill
from ..workers.sources.interface import Source
from ..workers.sources.offered import reads_stores
from .adapters.recognition import RecognisedLoader
from .metrics.measured import KeepStats, MeasuredLoader
from .on_error import OnError, as_on_error, count_restarts
from .plain.iterators import InlineIterator, WorkersIterator
from .plain.order import is_stream
from .plain.skipped import make_left_out
from .plain.state import PlainState
from .refused_arguments import (
    BUFFER_BYTES,
    WORDS,
    is_packed_stream,
    refuse_no_samples,
    refuse_without_balance,
    value_classes,
)
from .step.info import BatchT, Step, StepInfo

# Where there is a `balance`, methods import .balancing: a plain loop needs nothing of it.
if TYPE_CHECKING:
    from ..balancer.planning.problem.balance import Balance
    from ..balancer.planning.problem.options import GroupingName
    from .balanced.followed_costs import MeasuredCosts
    from .balanced.microbatches import BalancedLoader
    from .balanced.settings import BalancedArguments, Balancer, Fleet
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


@explain_arguments(value_classes, WORDS)
class DataLoader(RecognisedLoader, MeasuredLoader, TypedLoader[T, BatchT]):
    """A drop-in for torch.utils.data.DataLoader; the arguments below are new, and keyword-only.

    Args:
        balance: How samples become microbatches and steps: a Balance, or the name of a grouping
            such as "balanced"; default: torch's own behaviour. With it, shuffle must be given;
            False keeps the data's order. Streams: streams.md.
        cost: A function from a sample to its costs, or a table of them, for a plain dataset;
            default: what the dataset says, or 1 each.
        key: A function from a sample's index to its name, for a plain dataset; default: the index.
        ranks: The data-parallel rank that this process plays: a DeviceMesh with named dimensions,
            their sizes such as {"dp": 2, "tp": 2}, a Topology, a pipeline's Units, a process group,
            (3, 8) for rank 3 of 8, or Ranks; default: torch.distributed's, or 0 of 1.
        balancer: The address of a `counterpoise balancer`, a fleet such as
            `cp.fleet.Ray(workers=(4, 64))`, or a Balancer; default: COUNTERPOISE_BALANCER's, or
            workers of this process.
        on_error: What a sample that cannot be used does, balanced or not: "raise"; "skip" leaves it
            out; "refill" (a stream without balance) takes the next in its place; or an OnError.
        skip_keys: Keys (StepInfo.keys) of samples to leave out of the plan as it is: they are
            holes; default none.
        fields: Of batches, what this process needs: names, or a function from a StepInfo to them,
            such as `pipe.needs`; others are not copied. Default: all.
        buffer_bytes: Most bytes of samples made ahead of need, here or by a balancer; default
            1 GiB.
        decode_threads: Threads that decode in each worker process; more than 1 is for data that say
            that they are thread_safe, as a TarDataset without a transform; default 1.
        growing_data: load_state_dict() takes a state of the data when they had fewer samples:
            between epochs, or in the data's order; default False: other data are refused.
        keep_stats: True counts waits and deliveries for stats(), report(), metrics(); "report" also
            writes report() to standard error after each epoch, on rank 0; a path writes stats() to
            a file; ("report", path) does both. Default False.

    Raises ValueError for arguments that contradict each other, or would have no effect.
    """

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
        cost: Any = None,
        key: Callable[[int], str] | None = None,
        ranks: Any = None,
        balancer: "Balancer | Fleet | str | None" = None,
        on_error: OnError | ErrorAction = "raise",
        skip_keys: Iterable[str] | None = None,
        fields: "WantedFields" = None,
        buffer_bytes: int = BUFFER_BYTES,
        decode_threads: int = 1,
        growing_data: bool = False,
        keep_stats: KeepStats = False,
    ) -> None:
        refuse_no_samples(dataset, balance)
        processor: Any = collate_fn
        if balance is not None and hasattr(processor, "over") and hasattr(dataset, "__len__"):
            # An HFProcessor: samples before they are batched, so costs are found without pixels.
            dataset = processor.over(dataset)
            is_own = getattr(balance, "layout", "torch") == "torch"
            collate_fn = processor.collate_samples if is_own else None
        # By the names of the parameters: Lightning makes plain loaders again from their attributes.
        self.balance, self.cost, self.key, self.ranks = balance, cost, key, ranks
        self.balancer, self.on_error, self.skip_keys = balancer, on_error, skip_keys
        self.fields, self.buffer_bytes, self.decode_threads = fields, buffer_bytes, decode_threads
        self.growing_data = growing_data
        self._keep_stats(keep_stats)
        self._late: LateBalancedLoader | None = None
        self._arguments: BalancedArguments | None = None
        policy = as_on_error(on_error)
        self._restarts = policy.restarts
        if balance is None or is_packed_stream(dataset):
            self._restarts = count_restarts(policy, dataset, num_workers)
        if balance is None:
            self._plain = PlainState(make_left_out(dataset, batch_size, policy, self._stats))
        else:
            refuse_refill(policy.action, BALANCED)
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
            "ranks": ranks, "balancer": balancer, "cost": cost, "key": key, "fields": fields,
            "skip_keys": skip_keys, "buffer_bytes": buffer_bytes, "decode_threads": decode_threads,
        }  # fmt: skip
        if balance is None:
            refuse_without_balance(only_balanced)
            return
        from . import assembly, balancing

        self._arguments = assembly.read_arguments(
            dataset, batch_size, shuffle, sampler, batch_sampler, generator, balance=balance,
            collate_fn=collate_fn, on_error=policy, restarts=self._restarts,
            growing_data=growing_data, stats=self._stats, **only_balanced,
        )  # fmt: skip
        self._late = balancing.prepare(self, self._arguments)

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
        except TypeError:  # the length is not known
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
        return balanced.plan.count_microbatches(samples) * len(balanced.ranks)

    @property
    def num_steps(self) -> int:
        """Optimizer steps in an epoch; TypeError where the plan decides it (modes but "exact")."""
        balanced = self._need_balance("num_steps")
        from . import balancing

        return balanced.plan.count_steps(balancing.count_samples(balanced, self.dataset))

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
        return self._arguments is not None

    def with_info(self) -> "DataLoader[T, tuple[BatchT, StepInfo]]":
        """Return this loader as one of pairs: each batch with its StepInfo, also if fetched ahead.

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
        takers: list[Any] = [sampler for sampler in samplers if hasattr(sampler, "set_epoch")]
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
        if self._arguments is not None:
            from . import balancing

            self._late = balancing.prepare(self, self._arguments)
            self._late.restore(state["_late"])

    def _need_balance(self, method: str) -> "BalancedLoader":
        self._refuse_plain(method)
        return self._balanced  # type: ignore[return-value]

    def _refuse_plain(self, method: str) -> None:
        if not self.is_balanced:
            raise ValueError(f'{method} needs a balanced loader: give balance="balanced", say')
