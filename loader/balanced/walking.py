"""Iterators over a balanced loader's microbatches and steps."""

import sys
from collections.abc import Iterator

from ..resume.balanced_position import ResumePosition
from ..step.info import Step, StepInfo
from .fetching import CountedSteps, Delivered, Fetched, Fetcher
from .microbatches import BalancedLoader


class Microbatches(Iterator[Delivered]):
    """An iterator over an epoch's microbatches; next() may be repeated after any exception.

    At its end the epoch is over and the next one's number is set. An iterator that was left behind,
    by another one or by load_state_dict, raises RuntimeError.
    """

    def __init__(self, loader: BalancedLoader) -> None:
        """Begin an iteration: see BalancedLoader.begin."""
        self._loader = loader
        self._generation = -1  # of none, if it cannot begin
        self._begin()

    def _begin(self) -> None:
        loader = self._loader
        self._generation = loader.begin()
        self._fetch = Fetcher(loader.receive, loader.unpack, loader.release).fetch
        if loader.job.counts_batches:
            self._fetch = CountedSteps(self._fetch, loader.add_up_labels).fetch
        self._epoch = loader.epoch
        self._touched = self._over = False

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._loader.finish(self._generation)

    def __next__(self) -> Delivered:
        fetched = self.fetch(self._loader.position)
        delivered = fetched.delivered
        self._loader.position = fetched.after
        return delivered

    def fetch(self, at: ResumePosition) -> Fetched:
        """Return the microbatch at a position, StopIteration at the end; see Fetcher."""
        loader = self._loader
        if not self._touched and loader.begins_again(self._generation):
            self._begin()
            at = loader.position
        self._touched = True
        while not self._over:
            loader.check_current(self._generation)
            # An exception may have come between the end of the epoch and the next line but three.
            fetched = self._fetch(at) if loader.epoch == self._epoch else None
            if isinstance(fetched, Fetched):
                return fetched
            if fetched is not None:  # whole steps are passed over: nothing waits to be returned
                at = loader.position = fetched.after
                continue
            if loader.epoch == self._epoch:
                loader.end_epoch(self._generation)
            self._over = True
        raise StopIteration


class Steps(Iterator[Step]):
    """An iterator over whole steps; next() may be repeated after any exception.

    Where the position is inside a step, the first has what is left of it.
    """

    def __init__(self, loader: BalancedLoader) -> None:
        """Begin an iteration: see BalancedLoader.begin."""
        self._loader = loader
        self._microbatches = Microbatches(loader)
        self._parts: list[Fetched] = []

    def __next__(self) -> Step:
        loader = self._loader
        loader.caller.enter()
        try:
            step, after = self._fetch()
        except BaseException:
            loader.caller.thread = None
            raise
        loader.caller.thread = None
        loader.position = after
        return step

    def _fetch(self) -> tuple[Step, ResumePosition]:
        """Return the next step and the position after it."""
        loader, parts = self._loader, self._parts
        if parts and parts[-1].after is loader.position:
            parts = self._parts = []  # of the step that was returned last
        while not parts or not self._is_last(parts[-1].delivered.info):
            parts.append(self._microbatches.fetch(parts[-1].after if parts else loader.position))
        infos = tuple(part.delivered.info for part in parts)
        step = Step(infos[0].step, tuple(part.delivered.batch for part in parts), infos)
        return step, parts[-1].after

    def _is_last(self, info: StepInfo) -> bool:
        return info.last and info.rank == self._loader.ranks[-1]
