"""Gives torch's iterator the sampler's batches of indices, from the position on.

The order is the sampler's business: one that is seeded (set_epoch) gives the same order in a new
process, and what was handed out is skipped without being loaded. torch's random samplers find
their generators as they were (see `order.py`). Samplers and their iterators with a state_dict are
restored by it instead: it is read when the loader's is, and the batches that they have yielded
ahead of the loop by then are kept beside it.
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
    """torch's index sampler of a loader, watched: iter() begins the state's current Iteration.

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
        return self._yield_requests(current) if current.stream else self._yield_batches(current)

    def _yield_requests(self, current: Iteration) -> Iterator[Any]:
        """Yield what a stream's batches are asked for with.

        Readers whose turn has not come get a task of one item: see StreamReader.
        """
        batches = iter(self._sampler)
        for batch in itertools.islice(batches, current.start.turn):
            yield batch[:1] if isinstance(batch, list) else batch
        yield from batches

    def _yield_batches(self, current: Iteration) -> Iterator[Any]:
        yield from itertools.repeat(NOT_YOUR_TURN, current.start.turn)
        waiting = frozenset(current.start.waiting)
        top = current.start.batches + len(waiting)
        first, default_generator = min(waiting, default=top), self._state.own_generator
        current.states = read_states(current.generators)
        for number, batch in _number_batches(self._sampler, current, first, default_generator):
            if number >= top or number in waiting:
                current.drawn += 1
                yield NumberedIndex(number, batch) if self._numbered else batch


def _number_batches(
    sampler: Any, current: Iteration, first: int, default_generator: torch.Generator
) -> Iterator[tuple[int, Any]]:
    """Yield a sampler's batches from the number `first` on, numbered; note what stateful ones give.

    default_generator: torch's own, or the generator that stands for it.
    What was handed out is skipped, unless the sampler itself goes on where it was. Raises
    ValueError for a sampler that draws another order, or has fewer batches.
    """
    # torch's own batches are cut here, so that the sampler's iterator can be seen.
    source, saved = inner_sampler(sampler), current.start.sampler
    by_sampler = saved is not None and saved.sampler is not None and is_stateful(source)
    if saved is not None and by_sampler:
        source.load_state_dict(saved.sampler)
    current.order = describe_order(source)
    if first and saved is None:
        check_same_order(current.start.order, current.order, current.start.batches)
    iterator: Any = _begin(source, current, default_generator)
    by_iterator = saved is not None and saved.iterator is not None and is_stateful(iterator)
    if saved is not None and by_iterator:
        iterator.load_state_dict(saved.iterator)
    is_cut = source is not sampler
    batches = _cut(iterator, sampler.batch_size, sampler.drop_last) if is_cut else iterator
    if saved is not None and (by_sampler or by_iterator):
        first = max(current.pending, default=current.start.batches - 1) + 1
        yield from [*current.pending.items()]
        if saved.is_over:
            return
    else:
        skipped = sum(1 for _ in itertools.islice(batches, first))
        if skipped < first:
            raise ValueError(
                f"ledger.batches says that {first} batches were handed out, and the sampler has "
                f"only {skipped}: resume with the same sampler and data, or begin the epoch again"
            )
    has_state = is_stateful(source) or is_stateful(iterator)
    for number, batch in enumerate(batches, first):
        if has_state:
            current.sampler, current.pending[number] = (source, iterator), batch
            current.is_over = is_cut and len(batch) < sampler.batch_size
        yield number, batch
    current.is_over = True


def _begin(source: Any, current: Iteration, default_generator: torch.Generator) -> Iterator[Any]:
    """Return an iterator over a sampler's indices; the default shuffle's seed is noted or set."""
    drawing = drawing_sampler(source)
    if drawing is None or drawing.generator is not None:
        return iter(source)
    generator = default_generator
    if own_shuffler(drawing) is not None:
        generator_state, seed = generator.get_state(), draw_seed(generator)  # as torch would
        if current.seed is None:
            current.seed = seed
            if default_generator is torch.default_generator:
                default_generator.set_state(generator_state)
                return iter(source)
        if current.was_drawn and default_generator is torch.default_generator:
            default_generator.set_state(generator_state)
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
