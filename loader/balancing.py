"""What a DataLoader does where it was given `balance`; a plain loop does not import it."""

from collections.abc import Iterator
from typing import Any

from ..balancer.planning.problem.balance import as_balance
from ..balancer.planning.problem.last_step import microbatches_of
from .adapters.gradient_state import is_last, steps_if_known
from .adapters.lightning_accumulation import check_lightning
from .adapters.recognition import stand_ins
from .assembly import BalancedArguments, prepare_balanced
from .balanced.arguments import checked_shuffle, read_order, refuse_ignored, with_rank, with_seed
from .balanced.late import LateBalancedLoader
from .balanced.microbatches import BalancedLoader
from .balanced.walking import Microbatches, Steps
from .collate.chosen import checked_fields
from .remote_dataset import RemoteDataset
from .step.info import Step
from .step.ranks import RankArguments


def prepare(loader: Any, given: BalancedArguments) -> LateBalancedLoader:
    """Return what makes the balanced loader behind `loader`; see `prepare_balanced`.

    What stands for torch's samplers stops frameworks from making batches of the loader themselves.
    """
    late = prepare_balanced(loader, given)
    # torch refuses to set them after construction, as they would have no effect: none is wanted
    loader.__dict__.update(stand_ins(loader, late.follow_epoch))
    return late


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


def iterate_steps(balanced: BalancedLoader) -> Iterator[Step]:
    """Return an iterator over a loader's whole steps."""
    return Steps(balanced)


def count_batches(balanced: BalancedLoader, steps: int, samples: int) -> int:
    """Return a process' microbatches in an epoch of `samples` samples, in mode "exact"."""
    if balanced.plan.last_step != "whole":
        return microbatches_of(balanced.plan, samples) * len(balanced.ranks)
    rows: Any = balanced.microbatches_per_step
    return steps * int(rows)


class BatchIterator:
    """Hands out batches and keeps their StepInfo on the loader."""

    _feed: Any = None
    _begun = False

    def __init__(self, balanced: BalancedLoader, loader: Any) -> None:
        self._microbatches = Microbatches(balanced)
        self._balanced, self._loader = balanced, loader
        self._feed = loader._accelerate
        self._steps = None if self._feed is None else steps_if_known(loader)

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Any:
        balanced = self._balanced
        balanced.caller.enter()
        try:
            self._begin()
            fetched = self._microbatches.fetch(balanced.position)
            batch, info, after = fetched.delivered.batch, fetched.delivered.info, fetched.after
            self._loader._info = info
            if self._feed is not None:
                batch = self._feed.place(batch)
                self._loader.end_of_dataloader = is_last(info, self._steps, balanced.ranks[-1])
            if self._loader._in_pairs:
                batch = batch, info
        except BaseException as error:
            if isinstance(error, StopIteration):
                self._end()
            balanced.caller.thread = None
            raise
        # Nothing can raise, nor another thread come in, from here on: see balanced/fetching.py.
        balanced.caller.thread = None
        balanced.position = after
        return batch

    def _begin(self) -> None:
        if not self._begun:
            check_lightning(self._loader)
            if self._feed is not None:
                self._feed.begin(self._loader, self._balanced.microbatches_per_step)
            self._begun = True

    def _end(self) -> None:
        if self._feed is not None and self._begun:
            self._begun = False
            self._feed.end(self._loader)

    def __del__(self) -> None:
        self._end()

    def __getstate__(self) -> Any:
        """Refuse to be pickled, as torch's iterators do."""
        raise NotImplementedError(
            "an iterator cannot be pickled: pickle the loader, which knows the position"
        )
