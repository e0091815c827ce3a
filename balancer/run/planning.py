"""Runs a PlanAhead in a thread beside the training loop, or in the caller's where there is none.

Theory of operation. The trainer's thread posts what it has learned (costs that workers measured,
steps that were handed out) and collects what has come of it: ordinals to measure, planned steps,
the end of the epoch, or the reason why it cannot go on. Neither waits for the other with a lock
held: both sides are queues, and a descriptor tells the trainer that there is something to collect.

An exception may leave the trainer's side anywhere, in the middle of next(). The thread goes on, and
with it what is agreed with other ranks: what was collected is kept until it has been handed out,
and a new PlannedRun collects it once more (`rewind`).

No lock is held over a fork (ADR 14): the thread works only while it holds the gate, which a fork
acquires first. While it waits, it waits outside of it.
"""

import atexit
import contextlib
import itertools
import os
import queue
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..planning.problem.empty_cells import Cell
from .ahead import OtherRanks, PlanAhead, PlannedStep
from .steps import Contents
from .tasks import FailedSample

Describe = Callable[[PlannedStep], dict[Cell, Contents]]  # of this process' microbatches

FORK_WAIT_S = 60.0  # a fork waits so long for a window that is being planned
AT_ONCE = 256  # samples that are planned in one go
KEPT_STEPS = 2  # what was handed out is kept so long: a position may be that far behind it
IDLE_S = 1.0  # an idle thread looks so often whether its planning is still there


@dataclass(slots=True)
class PlanProgress:
    """What has come of planning since it was last asked.

    to_measure: ordinals, and where they are in the source; steps: with the contents of this
    process' microbatches where no sample is a hole; failed: samples that could not be measured, by
    ordinal; has_heard: Planning.heard has new values. is_over: no more steps come, and left_out
    samples are in none. error: why the epoch cannot go on.
    """

    to_measure: list[tuple[int, int]] = field(default_factory=list)
    steps: list[tuple[PlannedStep, dict[Cell, Contents]]] = field(default_factory=list)
    failed: dict[int, FailedSample] = field(default_factory=dict)
    has_heard: bool = False
    is_over: bool = False
    left_out: int = 0
    error: Exception | None = None


class Planning:
    """An epoch's planning: `post` and `collect` by the trainer, `turn` by the side that plans."""

    def __init__(
        self, make: Callable[[], PlanAhead], describe: Describe,
        shares: OtherRanks | None = None, group: str = "",
    ) -> None:  # fmt: skip
        """`make` is called by the side that plans: to draw an epoch's order may take a while.

        describe: returns the contents of a step's microbatches here. shares: the other ranks;
        group: begins all keys of this run.
        """
        self._make, self._describe = make, describe
        self._shares, self._group = shares, group
        self._is_stopped = False
        self._ahead: PlanAhead | None = None
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # What has come of it and is not handed out yet; so many were collected.
        self._reports: deque[PlanProgress] = deque()
        self._collected = 0
        self.heard: dict[str, tuple[bytes, ...]] = {}  # all ranks' values, by key
        self._told_failed = 0
        self._has_planned = self._is_planned = self._has_failed = False
        self.has_ended = False  # nothing more will come: it was stopped, or cannot go on
        # Keys under which this rank has said something; the others' answers to some are awaited.
        self._posted: set[str] = set()
        self._awaited: list[str] = []

    # --- the trainer's side

    def measured(self, ordinals: Sequence[int], costs: Sequence[Any]) -> None:
        """Post what workers have measured."""
        self._post("measured", (ordinals, costs))

    def handed_out(self, step: int) -> None:
        """Post that all steps before this one were handed out, and forget what is older by some."""
        self._post("handed out", step)
        oldest = step - KEPT_STEPS
        while self._collected and all(s.number < oldest for s, _ in self._reports[0].steps):
            self._reports.popleft()
            self._collected -= 1
        for key in [key for key in list(self.heard) if _is_before(key, oldest)]:
            del self.heard[key]

    def say(self, key: str, value: bytes) -> None:
        """Post this rank's value for a key of this run: the first; all ranks' come to `heard`.

        Keys that are of a step end with its number.
        """
        self._post("say", (key, value))

    def _post(self, kind: str, content: Any) -> None:
        self._inbox.put((kind, content))

    def collect(self) -> PlanProgress | None:
        """Return what has come of it, None if nothing has; see also PlanProgress.error."""
        if self._collected == len(self._reports):
            return None
        self._collected += 1
        return self._reports[self._collected - 1]

    def rewind(self, step: int) -> bool:  # noqa: ARG002
        """Collect all once more from this step on, and what is to be measured.

        False where that cannot be: planning was done here, or has ended.
        """
        return False

    def wait(self, seconds: float) -> None:  # noqa: ARG002
        """Wait until there is something to collect, at most so long: plan, here."""
        self.turn()

    def fileno(self) -> int | None:
        """Return what is readable when there is something to collect, None if nothing tells."""
        return None

    def stop(self) -> None:
        """End; what was not collected is forgotten, and nothing more is asked of other ranks."""
        if self._shares is not None and not self._is_stopped:
            self._shares.end(self._group)
        self._is_stopped = True
        self._awaited.clear()
        self.has_ended = True

    def pause_s(self) -> float:
        """Return how long it makes sense to wait for other ranks before the next turn."""
        return IDLE_S if self._shares is None else min(IDLE_S, self._shares.pause_s())

    @property
    def lost_reason(self) -> str:
        """Return why what is awaited of other ranks will never come; "" while it may."""
        if self._awaited and self._shares is not None:
            return str(self._shares.explain_loss(f"{self._group}/{self._awaited[0]}"))
        return self._ahead.lost_reason if self._ahead is not None else ""

    @property
    def missing(self) -> str:
        """Return in a few words what the next window waits for; "" for nothing."""
        if self._awaited and self._shares is not None:
            topic, _, step = self._awaited[0].partition("/")
            of = f"{topic} of step {step}" if step else topic
            return f"what other ranks say ({of}): {self.describe_missing(self._awaited[0])}"
        if self._ahead is None:
            return "the order of the epoch"
        return self._ahead.missing

    @property
    def awaits_ranks(self) -> bool:
        """Return whether something of other ranks is awaited."""
        return bool(self._awaited) or (self._ahead is not None and self._ahead.awaits_ranks)

    def describe_missing(self, key: str) -> str:
        """Return which ranks have not said their value for a key, as far as is known."""
        missing = self._shares.describe_missing(f"{self._group}/{key}") if self._shares else ""
        return missing or "it is on its way"

    # --- the side that plans

    def turn(self) -> bool:
        """Do what there is to do; return whether anything has come of it."""
        if self.has_ended:
            return False
        progress = PlanProgress()
        try:
            self._work(progress)
        except Exception as error:
            progress.error, self._is_planned, self._has_failed = error, True, True
            # Of what is planned already ranks still tell each other what they find.
            self.has_ended = not isinstance(error, ValueError | MemoryError) or self._ahead is None
        if progress == PlanProgress():
            return False
        self._reports.append(progress)
        return True

    def _work(self, progress: PlanProgress) -> None:
        ahead = self._ahead = self._ahead or self._make()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(ahead, *self._inbox.get_nowait())
        self._listen(progress)
        if self._is_planned:
            return
        for step in self._next_steps(ahead):
            progress.steps.append((step, self._describe(step)))
        while ahead.to_measure:
            ordinal = ahead.to_measure.popleft()
            progress.to_measure.append((ordinal, int(ahead.feed.order[ordinal])))
        if len(ahead.failed) > self._told_failed:
            new = len(ahead.failed) - self._told_failed
            progress.failed = dict(itertools.islice(reversed(ahead.failed.items()), new))
            self._told_failed += new
        if ahead.is_over:
            progress.is_over = self._is_planned = True
            progress.left_out = ahead.feed.left_out

    def _take(self, ahead: PlanAhead, kind: str, content: Any) -> None:
        if kind == "measured":
            ahead.store(*content)
        elif kind == "handed out":
            ahead.hand_out(content)
            oldest = content - KEPT_STEPS
            self._posted = {key for key in self._posted if not _is_before(key, oldest)}
        elif kind == "again":
            ahead.measure_again()
            self._told_failed, self._is_planned = 0, False
        elif self._shares is not None and content[0] not in self._posted:
            key, value = content
            self._posted.add(key)
            self._shares.post(f"{self._group}/{key}", value)
            self._awaited.append(key)

    def _listen(self, progress: PlanProgress) -> None:
        """Look for what other ranks have said, in the order in which this one has."""
        while self._awaited and self._shares is not None:
            values = self._shares.gather(f"{self._group}/{self._awaited[0]}")
            if values is None:
                return
            self.heard[self._awaited.pop(0)] = values
            progress.has_heard = True

    def _next_steps(self, ahead: PlanAhead) -> Iterator[PlannedStep]:
        """Yield some of the steps that can be planned: the first alone, so that it is there soon.

        The lock of Python is free in between, and a fork has its turn.
        """
        samples = 0
        for step in ahead.steps():
            yield step
            samples += len(step.indexes)
            if not self._has_planned or samples >= AT_ONCE:
                self._has_planned = True
                return


def _is_before(key: str, step: int) -> bool:
    """Return whether a key is of an earlier step.

    >>> [_is_before(key, 5) for key in ("start", "holes/4", "holes/5")]
    [False, True, False]
    """
    number = key.rpartition("/")[2]
    return number.isdecimal() and int(number) < step


class PlanningThread(Planning):
    """Planning in a thread of its own, beside the trainer's."""

    def __init__(self, *args: Any) -> None:
        """Take what Planning takes; see there."""
        super().__init__(*args)
        self._gate = threading.Lock()
        self._stopped = False
        # No threading.Event: an exception that leaves set() in its middle leaves its lock held.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._tells = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._has_told = False
        self._poller = select.poll()
        self._poller.register(self._tells, select.POLLIN)
        weakref.finalize(self, os.close, self._tells)
        _running.add(self)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; the processes that are to have no copy of it are forked before."""
        args = weakref.ref(self), self._bell
        self._thread = threading.Thread(None, _run, "counterpoise planning", args, daemon=True)
        self._thread.start()

    def _post(self, kind: str, content: Any) -> None:
        super()._post(kind, content)
        self._bell.put(None)

    def collect(self) -> PlanProgress | None:
        """Return what has come of it, None if nothing has."""
        progress = super().collect()
        if progress is None and self._has_told:  # set after the descriptor, so that none is missed
            self._has_told = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._tells)
            progress = super().collect()  # which may have come in between
        return progress

    def rewind(self, step: int) -> bool:
        """Collect all once more from this step on, and what is to be measured."""
        if self.has_ended or self._has_failed:
            return False
        self._collected = 0
        for place in range(len(self._reports)):  # the thread may add to it meanwhile
            self._reports[place].to_measure.clear()
        self.handed_out(step)
        self._post("again", None)
        if self._thread is None:
            self.start()
        return True

    def wait(self, seconds: float) -> None:
        """Wait until there is something to collect, at most so long."""
        self._poller.poll(seconds * 1000)

    def fileno(self) -> int | None:
        """Return what is readable when there is something to collect."""
        return self._tells

    def stop(self) -> None:
        """End the thread, and wait until it has ended."""
        self._stopped = True
        self._bell.put(None)
        if self._thread is not threading.current_thread():  # else a finalizer, and `_run` stops
            if self._thread is not None and self._thread.is_alive():
                self._thread.join(FORK_WAIT_S)
            super().stop()

    def _work_once(self) -> bool:
        """Work as far as there is something to do; return whether anything came of it."""
        with self._gate:
            if came := not self._stopped and self.turn():
                os.eventfd_write(self._tells, 1)
                self._has_told = True
            return came


def _run(planning: "weakref.ref[PlanningThread]", bell: "queue.SimpleQueue[None]") -> None:
    """Be the thread: it ends with its planning, also where that was never stopped."""
    while (mine := planning()) is not None and not mine._stopped and not mine.has_ended:
        while not bell.empty():
            bell.get()
        is_busy = mine._work_once()
        if mine._stopped:
            Planning.stop(mine)
        pause_s = mine.pause_s()
        del mine
        if not is_busy:
            with contextlib.suppress(queue.Empty):
                bell.get(timeout=pause_s)


_running: "weakref.WeakSet[PlanningThread]" = weakref.WeakSet()
_held: list[threading.Lock] = []


def _before_fork() -> None:
    for planning in list(_running):
        gate = planning._gate
        if planning._thread is not None and gate.acquire(timeout=FORK_WAIT_S):
            _held.append(gate)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    """Forget the parent's: its thread is not here."""
    _held.clear()
    _running.clear()


@atexit.register
def _stop_all() -> None:
    """End the threads before the interpreter does: nothing else would wait for them."""
    for planning in list(_running):
        planning.stop()
        # Others that wait for this process are told so, and the error that it ends with.
        if planning._shares is not None:
            planning._shares.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
