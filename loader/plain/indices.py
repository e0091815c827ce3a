"""Gives torch's iterator the sampler's batches of indices, from the position on.

The order is the sampler's business: one that is seeded (set_epoch, a generator seeded again) gives
the same order in a new process, and what was handed out is skipped without being loaded. Samplers
and their iterators with a state_dict are restored by it instead. The default random sampler draws
its seed from torch's global generator; that seed is kept in the ledger, so shuffle=True resumes as
it is.
"""

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import torch

from ...workers.batches.envelope import is_stateful, state_of
from ...workers.batches.map_reader import NOT_YOUR_TURN, NumberedIndex
from ..resume.ledger import SamplerState
from .order import check_same_order, describe_order, drawn_from, next_shuffle_seed, own_shuffler
from .state import Iteration, PlainState


class Indices:
    """torch's index sampler of a loader, watched; each iteration is one iteration.

    numbered: whether the batches carry their numbers.
    """

    def __init__(self, loader: Any, state: PlainState, numbered: bool) -> None:
        self._sampler = loader._index_sampler
        self._state = state
        self._numbered = numbered

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        current = self._state.current
        return self._stream(current) if current.stream else self._walk(current)

    def _stream(self, current: Iteration) -> Iterator[Any]:
        """Yield what a stream's batches are asked for with.

        Readers whose turn has not come get a task of one item: see StreamReader.
        """
        indices = iter(self._sampler)
        for index in itertools.islice(indices, current.start.turn):
            yield index[:1] if isinstance(index, list) else index
        yield from indices

    def _walk(self, current: Iteration) -> Iterator[Any]:
        yield from itertools.repeat(NOT_YOUR_TURN, current.start.turn)
        waiting = frozenset(current.start_waiting)
        top = current.start_batches + len(waiting)
        for number, index in self._from(current, min(waiting, default=top)):
            if number >= top or number in waiting:
                current.drawn += 1
                yield NumberedIndex(number, index) if self._numbered else index

    def _from(self, current: Iteration, first: int) -> Iterator[tuple[int, Any]]:
        """Yield batches from the number `first` on, numbered; keep what stateful samplers say."""
        drawing = _Drawing(self._sampler, current, first)
        indices = drawing.indices
        if not drawing.restored:
            _skip(indices, first)
        _keep(current, first, drawing.state(begun=first > 0))
        for number, index in enumerate(indices, first):
            _keep(current, number + 1, drawing.state())
            yield number, index


class _Drawing:
    """One iteration over a sampler.

    restored: whether the sampler itself goes on where it was; else the beginning is to be skipped.
    """

    def __init__(self, sampler: Any, current: Iteration, first: int) -> None:
        # torch's own batches are cut here, so that the sampler's iterator can be seen.
        source = self._source = drawn_from(sampler)
        before = current.start_sampler or SamplerState(None, None)
        by_sampler = before.sampler is not None and is_stateful(source)
        if by_sampler:
            source.load_state_dict(before.sampler)
        then, current.order = current.order, describe_order(source)
        if first and not by_sampler and before.iterator is None:
            check_same_order(then, current.order, current.start_batches)
        indices: Any = _begin(source, current, first)
        self._iterator = indices
        by_iterator = before.iterator is not None and is_stateful(indices)
        if by_iterator:
            indices.load_state_dict(before.iterator)
        self.restored = by_sampler or by_iterator
        self.indices: Iterator[Any] = indices
        if source is not sampler:
            self.indices = _cut(indices, sampler.batch_size, sampler.drop_last)

    def state(self, begun: bool = True) -> SamplerState:
        """Return the states that there are; a sampler knows its place once it has begun."""
        return SamplerState(state_of(self._source) if begun else None, state_of(self._iterator))


def _skip(indices: Iterator[Any], count: int) -> None:
    """Pass over batches that were handed out; ValueError for a sampler that has fewer."""
    skipped = sum(1 for _ in itertools.islice(indices, count))
    if skipped < count:
        raise ValueError(
            f"ledger.batches says that {count} batches were handed out, and the sampler has only "
            f"{skipped}: resume with the same sampler and data, or begin the epoch again"
        )


def _keep(current: Iteration, number: int, state: SamplerState) -> None:
    if state.sampler is not None or state.iterator is not None:
        current.sampler_states[number] = pickle.dumps(state, protocol=5)


def _begin(source: Any, current: Iteration, first: int) -> Iterator[Any]:
    """Return an iterator over a sampler's indices; the default shuffle's seed is noted or set."""
    if own_shuffler(source) is None:
        return iter(source)
    if current.seed is None:
        current.seed = next_shuffle_seed()
        return iter(source)
    if first == 0:
        next_shuffle_seed(advance=True)  # torch would draw one here
    source.generator = torch.Generator().manual_seed(current.seed)
    indices = iter(source)
    head = list(itertools.islice(indices, 1))  # the sampler reads its generator when it begins
    source.generator = None
    return itertools.chain(head, indices)


def _cut(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of `size` indices, as torch's BatchSampler does."""
    while batch := list(itertools.islice(indices, size)):
        if drop_last and len(batch) < size:
            return
        yield batch
