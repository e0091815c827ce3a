"""A board on which every rank notes where it stands, so that errors can say who waits for whom.

A thread writes this rank's standing to a key-value store twice a second and reads the others', so
what was known last is here when the store's host is gone. A store that does not answer holds up the
thread alone, for ever where its host is stopped, so a second thread ends a process that no other
waits for any more. A standing has a number that grows each time: one that has not grown for a while
is of a process that is dead, stopped or cut off.

The threads end before the interpreter does, whether or not the board was closed. Python ends a
thread that comes back from a call to find the interpreter ending, and where that call is torch's,
C++ answers with abort().
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from .waiting import Standing
from .walk import Waits

_PERIOD_S = 0.5
# Who misses several is dead, stopped or cut off.
_SILENT_S = 2.5
# For others' last words, once this rank has failed, and for the store's answer.
_LISTEN_S = 3.5
_ANSWER_S = 1.5
# What a rank has failed with that only knows that something does not come.
_UNKNOWN = "failed"
_LOST = 70
# A store that does not answer within this time is taken for lost.
_STORE_S = 10.0
# How long threads are waited for at exit: their calls end by then, save those to a stopped host.
_END_S = _STORE_S + 2.0


class Board:
    """The standings of all ranks of a pipeline, as one of them knows them.

    `pipelines`: the processes of each, by rank; one may be in several lanes of tensor parallelism.
    `pipeline`: the one that the board follows, in which it is of `rank`. The first process of the
    first one hosts the store. `waits`: what the executor changes as it goes on. `deadline_s`: how
    long after others have given up a rank that does not go on is ended.
    """

    def __init__(
        self,
        store: TCPStore,
        rank: int,
        pipelines: Sequence[Sequence[int]],
        pipeline: int,
        deadline_s: float,
    ) -> None:
        self.waits = Waits()
        self.step = 0
        # Known before the store has been read, which may be gone by then.
        other_ranks = {*range(len(pipelines[pipeline]))} - {rank}
        self.standings = dict.fromkeys(other_ranks, Standing(0, 0))
        self._store, self._rank = store, rank
        self._pipelines, self._pipeline = pipelines, pipeline
        self._processes, self._hosting = pipelines[pipeline], pipelines[0][0]
        store.set_timeout(timedelta(seconds=_STORE_S))
        self._deadline_s = deadline_s
        # The rank's place when it was last looked at, and since when it is there.
        self._place, self._since = (0, 0, ""), monotonic()
        self._beat = 0
        self._read_at = monotonic()
        # By rank: the last number seen, and when it was new.
        self._heard = dict.fromkeys(other_ranks, (0, self._read_at))
        # The store's host, if it is in other pipelines; and theirs when this rank began to listen.
        self._host = Standing(0, 0)
        self._before: tuple[float, dict[int, dict[int, Standing]]] = (0.0, {})
        self._running = False
        self._failed = ""
        self._lost = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        # All ranks meet after this, so that no key is missing when the thread reads them.
        store.set(_key(self._processes[rank]), _text(Standing(0, 0)))

    def start(self) -> None:
        """Start to publish; all ranks have made their boards."""
        # Two threads: a store whose host is stopped may hold up the first one for ever.
        self._start_thread(self._publish_often, "standing")
        self._start_thread(self._watch, "watch")

    def _start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread that is waited for at exit."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        _boards.add(self)
        thread.start()
        return thread

    def begin_step(self, step: int) -> Waits:
        """Note that a step starts, and return what the executor notes its place in."""
        self.step, self.waits, self._running = step, Waits(), True
        return self.waits

    def end_step(self) -> None:
        """Note that no step runs: whatever takes time now is the training loop's."""
        self._running = False

    def close(self) -> None:
        """Stop to publish, without waiting for a store that does not answer."""
        self._stop.set()

    def join(self, until: float) -> None:
        """Wait, after `close`, for the end of the board's threads, but not past `until`."""
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))

    def give_up(self, error: str) -> dict[int, Standing]:
        """Publish that this rank has failed, and return all standings as of now.

        Listens for some seconds, also where the store is gone, until a rank is found whose process
        has ended or stopped, or that says what went wrong there.
        """
        self._failed = error or _UNKNOWN
        self._running = False
        until = monotonic() + _LISTEN_S
        self._before = monotonic(), self._read_others()
        while True:
            self._start_thread(self._exchange, "last words").join(_ANSWER_S)
            standings = self._as_of_now()
            known = any(s.silent_s or s.failed not in ("", _UNKNOWN) for s in standings.values())
            if error or known or self._lost or monotonic() > until:
                return standings | {self._rank: self._own()}
            self._stop.wait(_PERIOD_S)

    def _as_of_now(self) -> dict[int, Standing]:
        """Return the others' standings with how long each has not been heard of."""
        now = monotonic()
        age = now - self._read_at
        answers = not self._lost and age < _ANSWER_S
        standings = {}
        for rank, standing in self.standings.items():
            silent = now - self._heard[rank][1]
            if not answers:
                # With the store's host everybody falls silent; only the host is known to be.
                hosts = self._processes[rank] == self._hosting
                silent = max(age, _SILENT_S) if hosts else 0.0
            silent = silent if silent >= _SILENT_S else 0.0
            standings[rank] = replace(standing, since_s=standing.since_s + age, silent_s=silent)
        return standings

    def elsewhere(self) -> dict[int, dict[int, Standing]]:
        """Return the standings of the other pipelines' ranks, as far as the store tells them.

        Call it after `give_up`, which has listened: who has not published since is silent.
        """
        now = monotonic()
        age = now - self._read_at
        if self._lost or age >= _ANSWER_S:
            host = replace(self._host, silent_s=max(age, _SILENT_S))
            return {} if self._hosting in self._processes else {0: {0: host}}
        (listened, before), by_pipeline = self._before, self._read_others()
        silent = now - listened
        return {
            number: {
                rank: replace(there, silent_s=silent)
                if silent >= _SILENT_S
                and there.beat == before.get(number, {}).get(rank, there).beat
                else there
                for rank, there in ranks.items()
            }
            for number, ranks in by_pipeline.items()
        }

    def _read_others(self) -> dict[int, dict[int, Standing]]:
        """Return the standings of the other pipelines, without those that do not come soon."""
        by_pipeline: dict[int, dict[int, Standing]] = {}

        def read() -> None:
            with suppress(RuntimeError):
                for number in range(len(self._pipelines)):
                    if number != self._pipeline:
                        by_pipeline[number] = self._read(number)

        if len(self._pipelines) > 1 and not self._lost:
            self._start_thread(read, "others").join(_ANSWER_S)
        return dict(by_pipeline)

    def _own(self) -> Standing:
        value = self.waits.value
        key = (self.step, self.waits.at, "" if value is None else str(value))
        if key != self._place:
            self._place, self._since = key, monotonic()
        since = monotonic() - self._since
        return Standing(*key, since_s=since, failed=self._failed, beat=self._beat)

    def _read(self, pipeline: int) -> dict[int, Standing]:
        """Return the standings of a pipeline. Raises RuntimeError if the store is gone."""
        texts = self._store.multi_get([*map(_key, self._pipelines[pipeline])])
        return {rank: msgspec.json.decode(t, type=Standing) for rank, t in enumerate(texts)}

    def _exchange(self) -> None:
        """Write this rank's standing and read the others'."""
        self._beat += 1
        try:
            self._store.set(_key(self._processes[self._rank]), _text(self._own()))
            standings = self._read(self._pipeline)
            if self._hosting not in self._processes:
                text = self._store.get(_key(self._hosting))
                self._host = msgspec.json.decode(text, type=Standing)
        except RuntimeError:
            # The host of the store is gone; what was read before stays.
            self._lost = True
            return
        del standings[self._rank]
        self._read_at = now = monotonic()
        for rank, standing in standings.items():
            if self._heard[rank][0] != standing.beat:
                self._heard[rank] = standing.beat, now
        self.standings = standings

    def _publish_often(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            if not self._lost:
                self._exchange()

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._end_if_left_alone(os._exit)

    def _end_if_left_alone(self, leave: Callable[[int], None]) -> None:
        """End the process if the others have given up and this rank's own pass does not end."""
        here = self._own()
        failed = {rank: there.failed for rank, there in self.standings.items() if there.failed}
        reasons = [f"rank {rank} has given up: {error}" for rank, error in failed.items()]
        if self._lost or monotonic() - self._read_at > _STORE_S:
            reasons.append("the first rank's process is gone")
        computes = self._running and not here.waiting and not self.waits.done
        if computes and reasons and here.since_s > self._deadline_s:
            print(  # noqa: T201
                f"rank {self._rank} is in one pass since {here.since_s:.0f} s, and {reasons[0]}",
                file=sys.stderr,
                flush=True,
            )
            leave(_LOST)


def _key(process: int) -> str:
    return f"standing/{process}"


def _text(standing: Standing) -> str:
    return msgspec.json.encode(standing).decode()


# Boards whose threads may run; a thread in a call keeps its board, also a closed one.
_boards: "weakref.WeakSet[Board]" = weakref.WeakSet()


def _end_threads() -> None:
    """End the threads of all boards, at exit."""
    boards, until = list(_boards), monotonic() + _END_S
    for board in boards:
        board.close()
    for board in boards:
        board.join(until)


atexit.register(_end_threads)
# A forked process has none of the threads, and perhaps locks that they held.
os.register_at_fork(after_in_child=_boards.clear)
