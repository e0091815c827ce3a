"""Chooses the balanced loader behind a DataLoader with `balance`, and iterates over it."""

import sys
from contextlib import suppress
from functools import partial
from typing import Any

from .adapters.recognition import stand_ins
from .assembly import make_loader, read_settings
from .balanced.microbatches import LIGHTNING, BalancedLoader, Microbatches
from .balanced.settings import BalancedArguments
from .late import LateBalancedLoader
from .plain.order import is_stream
from .refused_arguments import is_packed_stream
from .remote_dataset import RemoteDataset


def prepare(loader: Any, arguments: BalancedArguments) -> LateBalancedLoader:
    """Return the maker of the balanced loader behind `loader`, for when its ranks are needed.

    Raises ValueError as `read_settings` does. What stands for torch's samplers stops frameworks
    from making batches of the loader themselves.
    """
    if is_packed_stream(loader.dataset):
        # here: other loops need nothing of it
        from .streams.settings import make_stream_loader, settings_of_stream

        local, packs = settings_of_stream(loader, arguments)
        make = partial(make_stream_loader, local, packs)
        late = LateBalancedLoader(arguments, make, packs.set_epoch)
    elif arguments.balance.grouping == "auto":
        from .automatic import LateAutoLoader  # here: who says what to balance needs nothing of it

        late = LateAutoLoader(read_settings(loader, arguments))
    else:
        late = LateBalancedLoader(arguments, partial(make_loader, read_settings(loader, arguments)))
    # torch refuses to set them after construction, as they would have no effect: none is wanted
    loader.__dict__.update(stand_ins(loader, late.follow_epoch))
    return late


def count_samples(balanced: BalancedLoader, dataset: Any) -> int:
    """Return the samples of an epoch; connects where only the workers or a stream know it.

    Raises TypeError where its steps are not known beforehand.
    """
    if why := balanced.no_steps_reason:
        raise TypeError(why)
    is_planned = is_stream(dataset) or isinstance(dataset, RemoteDataset) or balanced.sources
    return balanced.count() if is_planned else len(dataset)


class BatchIterator:
    """Hands out batches and keeps their StepInfo on the loader."""

    _feed: Any = None
    _begun = False

    def __init__(self, balanced: BalancedLoader, loader: Any) -> None:
        self._stats = loader._stats
        self._microbatches = Microbatches(balanced, self._stats)
        self._balanced, self._loader = balanced, loader
        self._feed = loader._accelerate
        self._steps: int | None = None
        if self._feed is not None:
            with suppress(TypeError):  # where the plan decides
                self._steps = loader.num_steps

    def __iter__(self) -> "BatchIterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        balanced, stats = self._balanced, self._stats
        balanced.caller.enter()
        try:
            self._begin()
            if stats is not None:
                stats.wait()
            fetched = self._microbatches.fetch(balanced.position)
            batch, info, after = fetched.batch, fetched.info, fetched.after
            self._loader._info = info
            if stats is not None:
                stats.take([(batch, info)])
            if self._feed is not None:
                batch = self._feed.place(batch)
                is_last = info.last and info.rank == balanced.ranks[-1]
                is_end = self._steps is not None and info.step == self._steps - 1
                self._loader.end_of_dataloader = is_last and is_end
            if self._loader._in_pairs:
                batch = batch, info
        except BaseException as error:
            if isinstance(error, StopIteration):
                self._end()
            balanced.caller.thread = None
            raise
        # Nothing can raise, nor another thread come in, from here on: see balanced/microbatches.py.
        balanced.caller.thread = None
        balanced.before, balanced.position = balanced.position, after
        return batch

    def _begin(self) -> None:
        if not self._begun:
            if not sys.modules.keys().isdisjoint(LIGHTNING):
                from .step.accumulation import check_lightning  # here: other loops need none

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
