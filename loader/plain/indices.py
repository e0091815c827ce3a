"""Gives torch's iterator the sampler's batches of indices, from the position on.

The order is the sampler's business: one that is seeded (set_epoch) gives the same order in a new
process, and what was handed out is skipped without being loaded. torch's random samplers find
their generators as they were (see `order.py`). Samplers and their iterators with a state_dict are
restored by it instead: they are asked when the loader is, and what they have given ahead of the
loop by then is kept beside their state.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ...workers.batches.envelope import is_stateful
from ...workers.batches.map_reader import NOT_YOUR_TURN, NumberedIndex
from .order import (
    check_same_order,
    describe_order,
    draw_seed,
    drawing_sampler,
    inner_sampler,
    own_shuffler,
    read_states,
)
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
        waiting = frozenset(current.start.waiting)
        top = current.start.batches + len(waiting)
        stand_in = self._state.own_generator
        current.states = read_states(current.generators)
        for number, index in _draw(self._sampler, current, min(waiting, default=top), stand_in):
            if number >= top or number in waiting:
                current.drawn += 1
                yield NumberedIndex(number, index) if self._numbered else index


def _draw(
    sampler: Any, current: Iteration, first: int, stand_in: torch.Generator
) -> Iterator[tuple[int, Any]]:
    """Yield a sampler's batches from the number `first` on, numbered; note what stateful ones give.

    stand_in: what stands for torch's own generator.
    What was handed out is skipped, unless the sampler itself goes on where it was. Raises
    ValueError for a sampler that draws another order, or has fewer batches.
    """
    # torch's own batches are cut here, so that the sampler's iterator can be seen.
    source, before = inner_sampler(sampler), current.start.sampler
    by_sampler = before is not None and before.sampler is not None and is_stateful(source)
    if before is not None and by_sampler:
        source.load_state_dict(before.sampler)
    current.order = describe_order(source)
    if first and before is None:
        check_same_order(current.start.order, current.order, current.start.batches)
    drawn: Any = _begin(source, current, stand_in)
    by_iterator = before is not None and before.iterator is not None and is_stateful(drawn)
    if before is not None and by_iterator:
        drawn.load_state_dict(before.iterator)
    is_cut = source is not sampler
    indices = _cut(drawn, sampler.batch_size, sampler.drop_last) if is_cut else drawn
    if before is not None and (by_sampler or by_iterator):
        first = max(current.pending, default=current.start.batches - 1) + 1
        yield from [*current.pending.items()]
        if before.is_over:
            return
    else:
        skipped = sum(1 for _ in itertools.islice(indices, first))
        if skipped < first:
            raise ValueError(
                f"ledger.batches says that {first} batches were handed out, and the sampler has "
                f"only {skipped}: resume with the same sampler and data, or begin the epoch again"
            )
    has_state = is_stateful(source) or is_stateful(drawn)
    for number, index in enumerate(indices, first):
        if has_state:
            current.sampler, current.pending[number] = (source, drawn), index
            current.is_over = is_cut and len(index) < sampler.batch_size
        yield number, index
    current.is_over = True


def _begin(source: Any, current: Iteration, stand_in: torch.Generator) -> Iterator[Any]:
    """Return an iterator over a sampler's indices; the default shuffle's seed is noted or set."""
    drawing = drawing_sampler(source)
    if drawing is None or drawing.generator is not None:
        return iter(source)
    generator = stand_in
    if own_shuffler(drawing) is not None:
        before, seed = stand_in.get_state(), draw_seed(stand_in)  # as torch would
        if current.seed is None:
            current.seed = seed
            if stand_in is torch.default_generator:
                stand_in.set_state(before)
                return iter(source)
        if current.was_drawn and stand_in is torch.default_generator:
            stand_in.set_state(before)
        generator = torch.Generator().manual_seed(current.seed)
    drawing.generator = generator
    indices = iter(source)
    head = list(itertools.islice(indices, 1))  # the sampler reads its generator when it begins
    drawing.generator = None
    return itertools.chain(head, indices)


def _cut(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of `size` indices, as torch's BatchSampler does."""
    while batch := list(itertools.islice(indices, size)):
        if drop_last and len(batch) < size:
            return
        yield batch
