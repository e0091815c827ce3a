"""Makes what torch's iterator reads of a loader: the loader's own attributes, and ours in places.

A loader whose positions the trainer can count by itself goes in as it is. The data set and the
collate function are wrapped for a stream (each reader has a place of its own in it), for a data
set with a state_dict, for an error policy that leaves samples out, and for batches that may come
out of order.
"""

import functools
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ...workers.arena.context import ArenaContext
from ...workers.arena.transport import uses_arena, why_inline
from ...workers.arena.worker import Beginning
from ...workers.batches.envelope import is_stateful
from ...workers.batches.map_reader import MapReader
from ...workers.batches.prepare import prepare_worker
from ...workers.batches.stream_reader import StreamReader
from ...workers.processes.beginnings import Beginnings
from ...workers.processes.parent_watch import begin_worker
from ...workers.processes.start_method import worker_context
from .indices import Indices
from .iteration import Iteration
from .replacing import refuse_restarts, shared_numbers
from .state import PlainState
from .torch_names import TorchExceptionWrapper

Reader = StreamReader | MapReader


class IteratorArguments:
    """A loader as torch's iterators see it: `ours` in place of its attributes.

    beginnings: of its workers, where the data set has a state; an iterator waits for them.
    """

    def __init__(
        self,
        loader: Any,
        reader: Reader | None,
        ours: dict[str, Any],
        beginnings: Beginnings | None = None,
    ) -> None:
        self.reader = reader
        self.beginnings = beginnings
        self._loader = loader
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def make_arguments(loader: Any, state: PlainState) -> IteratorArguments:
    """Return the arguments for the iteration that `state` has begun."""
    reader = _reader(loader, state, state.current)
    numbered = isinstance(reader, MapReader) and _out_of_order(loader)
    ours: dict[str, Any] = {"_index_sampler": Indices(loader, state, numbered)}
    init_fn = loader.worker_init_fn
    if reader is not None:
        init_fn = functools.partial(prepare_worker, reader, init_fn)
        ours |= {"dataset": reader, "collate_fn": reader.collate}
        if isinstance(reader, StreamReader) and state.on_error != "raise":
            ours["drop_last"] = False  # the reader drops: torch would count holes as samples
    context: Any = loader.multiprocessing_context
    beginnings = None
    if loader.num_workers:
        context = worker_context(context)
        if reader is not None and is_stateful(loader.dataset):
            beginnings = Beginnings(context, TorchExceptionWrapper)
            init_fn = functools.partial(beginnings.worker_part().begin, init_fn)
        if isinstance(reader, MapReader) and loader._restarts:
            refuse_restarts(loader._restarts, why_inline(loader.transport))
            reader.progress = shared_numbers(context, loader.num_workers)
        if uses_arena(loader):
            init_fn = Beginning(TorchExceptionWrapper, init_fn)
            context = ArenaContext(context)
        ours["worker_init_fn"] = functools.partial(begin_worker, init_fn)
        ours["multiprocessing_context"] = context
    return IteratorArguments(loader, reader, ours, beginnings)


def _reader(loader: Any, state: PlainState, current: Iteration) -> Reader | None:
    dataset, carries = loader.dataset, loader.num_workers > 0
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        return None  # torch looks for the pipes themselves, to share them out and to seed them
    if isinstance(dataset, IterableDataset):
        return StreamReader(
            dataset,
            loader.collate_fn,
            None if loader.batch_sampler is None else loader.batch_size,
            loader.drop_last,
            state.on_error,
            current.start,
            carries,
        )
    watches = bool(loader._restarts) and carries
    if watches or is_stateful(dataset) or state.on_error != "raise" or _out_of_order(loader):
        return MapReader(dataset, loader.collate_fn, state.on_error, current.start, carries)
    return None


def _out_of_order(loader: Any) -> bool:
    # torch before 2.6 has no in_order, and keeps the order
    return loader.num_workers > 1 and not getattr(loader, "in_order", True)
