"""Which run the trainers of a job are in: begun by all, played from the one farthest behind.

A run is begun once every process has begun it (RunKey says what must be alike); the others pass
over what they have had. It is the same whether the balancer has just been started while ranks stood
here and there, or a process has come (back) to a run that goes on: then all are asked where they
stand (UnknownPeer), as by a balancer that knows nothing, and the run begins again. Processes that
are gone, or have begun a later run, need nothing: what their ranks are given is freed at once.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable

from ..pool.tickets import Ticket
from ..protocol.messages import UnknownPeer
from .gives import Lost, QueuedBatch, RankQueue, Taker, pack_batch
from .labels import LabelSums
from .messages import BeginRun, GiveBatch, JobReady, JoinJob, RunBegun, RunStops, ToTrainer
from .seats import Seats, TrainerPeer
from .starts import RunAttempt, RunKey, is_apart, join_starts, why_apart

# Processes that have begun different runs may be of two launches, until the former is known dead.
APART_S = 35.0
# A run that was begun at another balancer goes on without those who stay away for this long: they
# may have had all of it. Those who are to begin the next may come back for so long.
HELD_UP_S, MISSING_S = 30.0, 120.0
# On one host who shares a rank is waited for so long: some share it, and open no loader.
SHARERS_S = 2.0


class BegunRuns:
    """The state of Parties, and what decides which run is played."""

    def __init__(
        self,
        ranks: int,
        generation: int,
        token_of: Callable[[bytes], int],
        waits_for: Callable[[int], str] = lambda _: "its workers",
        ahead_steps: int = 2,
        on_host: bool = False,
    ) -> None:
        """`generation`: greater than that of a balancer before, and its runs: seconds will do.

        token_of: returns the token of a worker. waits_for: returns what a rank's next microbatch
        waits for. ahead_steps: how far processes that share a rank may be apart. on_host: all
        are processes of this host, and have started the workers themselves.
        """
        self._seats = Seats(ranks)
        self._generation = generation
        self._token_of = token_of
        self._waits_for = waits_for
        self._ahead_steps, self._on_host = ahead_steps, on_host
        self.run_begun = -1
        self._ready: JobReady | None = None
        self._starts: Counter[RunKey] = Counter()  # seats, by what their processes have begun
        self._queues: list[RankQueue] = []
        self._tickets: dict[int, QueuedBatch] = {}
        self._labels = LabelSums(ranks)
        self._leaving: set[bytes] = set()
        self._out: list[tuple[bytes, ToTrainer]] = []
        self._since: dict[str, float] = {}
        self._missing = (-math.inf, "")
        self._now = 0.0
        self.attempt: RunAttempt | None = None
        self.freed: list[Ticket] = []
        self.lost: list[Lost] = []
        self.changes: list[tuple[str, JoinJob]] = []
        self.notices: list[tuple[bytes, str]] = []
        self.to_look_at: dict[int, None] = {}

    def _begin(self, trainer: TrainerPeer, message: BeginRun) -> None:
        before = trainer.begun
        if trainer.stopped is not None and message.run <= trainer.stopped.run:
            self._send(trainer.peer, trainer.stopped)
            return
        if before is not None and message.run <= before.run:
            if message.run == before.run and trainer.is_playing:
                self._tell_begun(trainer)
            return
        self._unstate(trainer)
        is_new = before is None and not trainer.is_asked
        trainer.begun, trainer.is_asked, trainer.stopped = message, False, None
        key = trainer.key
        assert key is not None
        self._starts[key] += len(trainer.hello.ranks)
        if self.attempt is not None and self.attempt.key == key:
            self._stop()  # a newcomer may need what was freed
            self._ask(t for t in self._seats.peers.values() if t is not trainer and t.key == key)
        elif self.attempt is None and is_new:
            # Those ahead of a newcomer may be of a former launch: it would begin without its own.
            self._ask(t for t in self._seats.peers.values() if t.key and t.key.run > message.run)
        self._look()

    def _unstate(self, trainer: TrainerPeer) -> None:
        """Forget what a process has begun."""
        if (key := trainer.key) is not None:
            self._starts[key] -= len(trainer.hello.ranks)
            if not self._starts[key]:
                del self._starts[key]
        trainer.begun = None
        if trainer.is_playing:
            trainer.is_playing = False
            for rank in trainer.hello.ranks:
                self._free(self._queues[rank].drop(trainer.peer, self._now))
                self._look_at(self._queues[rank])

    def _ask(self, trainers: Iterable[TrainerPeer]) -> None:
        """Ask processes where they stand."""
        for trainer in trainers:
            self._unstate(trainer)
            trainer.is_asked = True
            self._send(trainer.peer, UnknownPeer())

    def _stop(self) -> None:
        """Forget the current run."""
        self.attempt = None
        for queue in self._queues:
            self._free(queue.clear())
        self._queues = []
        for trainer in self._seats.peers.values():
            trainer.is_playing = False

    def _look(self) -> None:
        """Begin the next run if its time has come, or find that it never will."""
        if self.attempt is not None and self.attempt.key not in self._starts:
            self._stop()
        is_apart = self._is_apart()
        waits = self._ready is None and not self._on_host
        if is_apart or waits or self.attempt is not None or not self._starts:
            self._since.pop("missing", None)
            if self._has_lasted("apart", is_apart, APART_S):
                self._fail([*self._seats.peers.values()], self._why_apart(), False)
            return
        seats = self._seats
        if sum(self._starts.values()) < seats.taken:
            self._since.pop("missing", None)
        elif seats.is_full or self._may_do_without():
            self._since.clear()
            first = min(self._starts, key=lambda key: key.run)
            self.run_begun = max(self.run_begun, first.run)
            if self._ready is not None:
                self._start(first)

    def _may_do_without(self) -> bool:
        """Return whether a run begins although some stay away; it fails where that lasts."""
        if self._on_host:
            is_late = self.run_begun < 0 and not self._has_lasted("missing", True, SHARERS_S)
            return self._seats.has_all_ranks and not is_late
        was_begun = self._has_lasted("missing", True, HELD_UP_S) and any(
            trainer.begun is not None and (trainer.begun.had or trainer.begun.served)
            for trainer in self._seats.peers.values()
        )
        if not was_begun and self._seats.gone and self._has_lasted("missing", True, MISSING_S):
            reason = (
                f"{self._seats.missing()}, and the others have waited {MISSING_S:.0f} s for them "
                "to begin the next epoch: let all ranks run the same epochs, or restart all ranks"
            )
            self._fail([*self._seats.peers.values()], reason, False)
        return was_begun

    def _has_lasted(self, what: str, is_so: bool, limit_s: float) -> bool:
        if not is_so:
            self._since.pop(what, None)
            return False
        return self._now - self._since.setdefault(what, self._now) > limit_s

    def _is_apart(self) -> bool:
        return is_apart(self._starts, None if self.attempt is None else self.attempt.key)

    def _why_apart(self) -> str:
        peers = self._seats.peers.values()
        return why_apart((t.key, t.name) for t in peers if t.key is not None)

    def _start(self, key: RunKey) -> None:
        """Begin a run, at the position of the process that is farthest behind."""
        playing = [trainer for trainer in self._seats.peers.values() if trainer.key == key]
        begun = [trainer.begun for trainer in playing if trainer.begun is not None]
        try:
            start = join_starts(begun)
        except ValueError as error:
            self._fail(playing, str(error), False)
            return
        first = min(message.had for message in begun)
        known = sorted({step for message in begun for step in message.known})
        self.attempt = RunAttempt(key, start, tuple(known))
        self._generation += 1
        takers: list[dict[bytes, Taker]] = [{} for _ in range(self._seats.ranks)]
        for trainer in playing:
            trainer.is_playing = True
            for place, rank in enumerate(trainer.hello.ranks):
                takers[rank][trainer.peer] = Taker(trainer.peer, trainer.had_of(place))
        self._queues = [
            RankQueue(rank, first, each, self._ahead_steps, self._pack, self._send)
            for rank, each in enumerate(takers)
        ]
        self.to_look_at.update(dict.fromkeys(range(self._seats.ranks)))
        for trainer in playing:
            self._tell_begun(trainer)

    def _tell_begun(self, trainer: TrainerPeer) -> None:
        skips = ((r, trainer.had_of(place)) for place, r in enumerate(trainer.hello.ranks))
        self._send(trainer.peer, RunBegun(self._run, tuple(skips)))

    def _fail(self, trainers: list[TrainerPeer], reason: str, comes_again: bool) -> None:
        self._since.clear()
        for trainer in trainers:
            if (begun := trainer.begun) is not None:
                trainer.stopped = RunStops(begun.run, reason, comes_again)
                self._send(trainer.peer, trainer.stopped)
        self._stop()
        for trainer in trainers:
            self._unstate(trainer)

    # --- what both need

    @property
    def _run(self) -> int:
        assert self.attempt is not None, "no run is played"
        return self.attempt.key.run

    def _pack(self, batch: QueuedBatch) -> GiveBatch:
        return pack_batch(batch, self._run, self._generation, self._token_of)

    def _look_at(self, queue: RankQueue) -> None:
        if queue.wants_more:
            self.to_look_at[queue.rank] = None

    def _free(self, batches: list[QueuedBatch]) -> None:
        for batch in batches:
            if batch.ticket is not None:
                self._tickets.pop(batch.ticket.number, None)
                self.freed.append(batch.ticket)

    def _send(self, peer: bytes, message: ToTrainer) -> None:
        self._out.append((peer, message))
