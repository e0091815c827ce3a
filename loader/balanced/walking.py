"""Iterators over a balanced loader's microbatches and steps.

`next()` may raise at any moment: in a collate_fn, on a full disk, by Ctrl-C or another signal's
handler. A caller who goes on must get what was not returned. So the position of a loader moves by
one assignment, the last thing before `next()` returns, and everything up to there can be done
again: a microbatch is fetched *at* a position, and at the same position it is the same microbatch,
unpacked once. The source is told of it (`release`) when it is unpacked; until then it has it, too.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...balancer.run.run import TRIES
from ...balancer.run.steps import explain_failures
from ..resume.balanced_position import ResumePosition
from ..step.errors import LoaderError
from ..step.info import Step
from .microbatches import BalancedLoader
from .source import Fetched, Kept, PassedOver

Place = tuple[int, int, int]


class Fetcher:
    """Fetches at positions; what is fetched at one stays there however often it is asked for."""

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        self._loader, self._stats = loader, stats
        self._kept: Kept | None = None

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run.

        Raises what unpacking raises, and LoaderError when it has done so TRIES times.
        """
        kept = self._kept
        if kept is None or kept.at is not at:
            arrival = self._loader.receive(at)
            kept = self._kept = None if arrival is None else Kept(arrival, at)
        if kept is None:
            return None
        unpacked = kept.unpacked
        if unpacked is None:
            unpacked = kept.unpacked = self._unpack(kept)
            if self._stats is not None:
                self._stats.take_holes(kept.arrival.batch.holes)
            kept.arrival.made = None  # its samples are not needed any more
        self._loader.open().release(kept.arrival)
        return unpacked

    def _unpack(self, kept: Kept) -> Fetched | PassedOver:
        try:
            return self._loader.unpack(kept)
        except LoaderError:
            raise
        except Exception as error:
            kept.failures += 1
            if kept.failures < TRIES:
                raise
            batch = kept.arrival.batch
            place = batch.step, batch.microbatch
            why = explain_failures(*place, batch.keys, kept.failures, error)
            raise LoaderError(why) from error


class CountedSteps:
    """Fetches as Fetcher does, where label tokens are known only when batches are collated.

    A StepInfo is complete before its step's first microbatch is handed out: so all of the step are
    fetched, and the ranks' counts added up. No collective is called. What comes out are the same
    microbatches at the same positions. What was fetched of a step is kept until another step is
    asked for: after an exception it goes on where it was.
    """

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        self._loader, self._fetcher = loader, Fetcher(loader, stats)
        # The position at which the step that is kept begins.
        self._first: ResumePosition | None = None
        self._parts: list[tuple[Place, Fetched]] = []
        self._counted: dict[Place, Fetched] = {}

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run."""
        if (found := self._counted.get(_place(at))) is not None:
            return found
        if self._first is None or at.place.step != self._first.place.step:
            self._first, self._parts, self._counted = at.beginning(), [], {}
        here = self._parts[-1][1].after if self._parts else self._first
        while not self._parts or here.place.step == at.place.step:
            fetched = self._fetcher.fetch(here)
            if fetched is None:
                return None
            if isinstance(fetched, Fetched):
                self._parts.append((_place(here), fetched))
            elif fetched.after.place.step != at.place.step:
                return fetched  # the whole step, on all ranks
            here = fetched.after
        tokens: Counter[int] = Counter()
        for _, part in self._parts:
            tokens[part.info.rank] += part.info.label_tokens
        total = self._loader.add_up_labels(at.place.step, tokens)
        self._counted = {
            place: replace(
                part,
                info=replace(
                    part.info,
                    rank_label_tokens=tokens[part.info.rank],
                    step_label_tokens=total,
                ),
            )
            for place, part in self._parts
        }
        return self._counted[_place(at)]


def _place(at: ResumePosition) -> Place:
    return at.place.step, at.place.microbatch, at.served


class Microbatches:
    """An epoch's microbatches in order; `fetch` may be repeated after any exception.

    At its end the epoch is over and the next one's number is set. What was left behind, by another
    iteration or by load_state_dict, raises RuntimeError.
    """

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        """Begin an iteration: see BalancedLoader.begin. stats: counts it; None for nobody."""
        self._loader, self._stats = loader, stats
        self._generation = -1  # of none, if it cannot begin
        self._begin()

    def _begin(self) -> None:
        loader = self._loader
        self._generation = loader.begin()
        fetcher = CountedSteps if loader.job.counts_batches else Fetcher
        self._fetcher = fetcher(loader, self._stats)
        self._epoch = loader.epoch
        self._touched = self._over = False

    def __del__(self, _finalizing: Any = sys.is_finalizing) -> None:
        # A module's names may be gone by then, and to print that error can hang.
        if not _finalizing():
            self._loader.finish(self._generation)

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
            fetched = self._fetcher.fetch(at) if loader.epoch == self._epoch else None
            if isinstance(fetched, Fetched):
                return fetched
            if fetched is not None:  # whole steps are passed over: nothing waits to be returned
                at = loader.position = fetched.after
                continue
            if loader.epoch == self._epoch:
                loader.end_epoch(self._generation)
                if self._stats is not None:
                    self._stats.end()
            self._over = True
        raise StopIteration


class Steps(Iterator[Step]):
    """An iterator over whole steps; next() may be repeated after any exception.

    Where the position is inside a step, the first has what is left of it.
    """

    def __init__(self, loader: BalancedLoader, whole: Any) -> None:
        """Begin an iteration: see BalancedLoader.begin. whole: the DataLoader."""
        self._loader, self._whole = loader, whole
        self._stats = whole._stats
        self._microbatches = Microbatches(loader, self._stats)
        self._parts: list[Fetched] = []

    def __len__(self) -> int:
        """Return the steps of a whole epoch, as torch's iterators do; TypeError if nobody knows."""
        steps: int = self._whole.num_steps
        return steps

    def __next__(self) -> Step:
        loader = self._loader
        loader.caller.enter()
        try:
            if self._stats is not None:
                self._stats.wait()
            step, after = self._fetch()
            if self._stats is not None:
                self._stats.take(zip(step.microbatches, step.infos, strict=True))
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
        last_rank = loader.ranks[-1]
        while not parts or not parts[-1].info.last or parts[-1].info.rank != last_rank:
            parts.append(self._microbatches.fetch(parts[-1].after if parts else loader.position))
        infos = tuple(part.info for part in parts)
        step = Step(infos[0].step, tuple(part.batch for part in parts), infos)
        return step, parts[-1].after
