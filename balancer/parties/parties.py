"""The trainers of a job at its balancer: who they are, what they have begun, what they may have.

Theory of operation. A run is begun once every process has begun it (RunKey says what must be
alike), and is played from where the process stands that is farthest behind; the others pass over
what they have had. It is the same whether the balancer has just been started while ranks stood
here and there, or a process has come (back) to a run that goes on: then all are asked where they
stand (UnknownPeer), as by a balancer that knows nothing, and the run begins again. Processes that are
gone, or have begun a later run, need nothing: what their ranks are given is freed at once.

Sans-IO: messages and a time in seconds in; messages, tickets to free and the current run out.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ..pool.tickets import Ticket
from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..run.arrivals import MicrobatchFacts
from ..run.tasks import Made
from .gives import QueuedBatch, RankQueue, Taker, pack_batch
from .labels import LabelSums
from .messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    FromTrainer,
    GiveBatch,
    JobReady,
    JoinJob,
    LeaveJob,
    LostPieces,
    RunBegun,
    RunStops,
    ToTrainer,
    TrainerBeat,
    WantBatches,
)  # fmt: skip
from .seats import Seats, TrainerPeer
from .starts import RunAttempt, RunKey, is_apart, join_starts, why_apart

# A process that was not heard for this long is dead.
SILENT_S = 30.0
# Processes that have begun different runs may be of two launches, until the former is known dead.
APART_S = 35.0
# A run that was begun at another balancer goes on without those who stay away for this long: they
# may have had all of it. Those who are to begin the next may come back for so long.
HELD_UP_S, MISSING_S = 30.0, 120.0


class Lost(NamedTuple):
    """Pieces of a ticket that a process cannot pull, by number, and why, as in LostPieces."""

    ticket: Ticket
    peer: bytes
    message: LostPieces


class Parties:
    """The trainers of a job of so many ranks.

    attempt: what is to be played; None where nothing is. freed, lost: for the caller, who empties
    them; of `freed` each ticket comes once. to_look_at: ranks that may want more since it was
    emptied.
    """

    def __init__(
        self,
        ranks: int,
        generation: int,
        token_of: Callable[[bytes], int],
        waits_for: Callable[[int], str] = lambda _: "its workers",
        ahead_steps: int = 2,
    ) -> None:
        """`generation`: greater than that of a balancer before, and its runs: seconds will do.

        token_of: returns the token of a worker. waits_for: returns what a rank's next microbatch
        waits for. ahead_steps: how far processes that share a rank may be apart.
        """
        self._seats = Seats(ranks)
        self._generation = generation
        self._token_of = token_of
        self._waits_for = waits_for
        self._ahead_steps = ahead_steps
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
        self.to_look_at: dict[int, None] = {}

    # --- what happens

    def receive(self, peer: bytes, message: FromTrainer, now: float) -> None:
        """Apply a message of a process."""
        self._now = now
        trainer = self._seats.peers.get(peer)
        if isinstance(message, JoinJob):
            self._join(peer, message, trainer)
        elif trainer is None:
            if isinstance(message, LeaveJob):
                self._leaving.add(peer)
                self._say_bye()
            else:
                self._send(peer, UnknownPeer())
        else:
            trainer.heard_at = now
            self._apply(trainer, message)

    def confirm(self, peer: bytes, now: float) -> None:
        """Take note that a process is alive: its host has what was sent."""
        if (trainer := self._seats.peers.get(peer)) is not None:
            trainer.heard_at = now

    def tick(self, now: float) -> None:
        """Do what the time asks for; to be called about once a second."""
        self._now = now
        for trainer in self._seats.silent(now - SILENT_S):
            self._remove(trainer)
        self._look()

    def take_messages(self) -> list[tuple[bytes, ToTrainer]]:
        """Return what is to be sent, and to whom."""
        messages, self._out = self._out, []
        return messages

    @property
    def is_empty(self) -> bool:
        """True if no process is here."""
        return not self._seats.peers

    # --- what the caller has

    def set_ready(self, count: int, fingerprint: str) -> None:
        """Say what the workers have said of the data: runs may begin."""
        self._ready = JobReady(count, fingerprint)
        for peer in self._seats.peers:
            self._send(peer, self._ready)
        self._look()

    def wanted(self, rank: int) -> bool:
        """Return whether a rank may be given one more."""
        return self.attempt is not None and self._queues[rank].wants_more

    def give(self, facts: MicrobatchFacts, made: Made) -> None:
        """Give a rank its next microbatch of the attempt."""
        batch = self._queues[facts.rank].give(facts, made, self._now)
        if not batch.lacking:
            self._free([batch])
        elif batch.ticket is not None:
            self._tickets[batch.ticket.number] = batch

    def end(self, rank: int, left_out: int) -> None:
        """Say that a rank has been given all of the run."""
        self._queues[rank].finish(self._run, left_out)

    def renew(self, ticket: Ticket) -> None:
        """Say that a lost piece of a ticket was made again: it is told to those who lack it."""
        if (batch := self._tickets.get(ticket.number)) is not None:
            self._queues[batch.rank].renew(batch, self._now)

    def fail(self, reason: str, comes_again: bool = False) -> None:
        """Stop the run for all who are in it."""
        if self.attempt is not None:
            self._fail([p for p in self._seats.peers.values() if p.is_playing], reason, comes_again)

    # --- joining and leaving

    def _join(self, peer: bytes, hello: JoinJob, trainer: TrainerPeer | None) -> None:
        if trainer is None or trainer.hello != hello:
            for older in self._seats.older_than(hello):
                self._remove(older)
            may_sit = self._seats.may_sit(peer, hello, self._now)
            if may_sit is not True:
                if may_sit:
                    self._send(peer, PeerRejected(may_sit))
                return
            self._leaving.discard(peer)
            self._seats.add(TrainerPeer(peer, hello, self._now))
        else:
            trainer.heard_at = self._now
        if self._ready is not None:
            self._send(peer, self._ready)

    def _remove(self, trainer: TrainerPeer) -> None:
        """Forget a process: it needs nothing more."""
        self._unstate(trainer)
        self._seats.remove(trainer)
        self._labels.remove(trainer.peer, trainer.hello.ranks)
        self._look()
        self._say_bye()

    def _say_bye(self) -> None:
        if not self._seats.peers:
            for peer in self._leaving:
                self._send(peer, Bye())
            self._leaving.clear()

    # --- beginning

    def _apply(self, trainer: TrainerPeer, message: FromTrainer) -> None:
        match message:
            case BeginRun():
                self._begin(trainer, message)
            case TrainerBeat():
                waiting = self._waiting(trainer) if message.asks else ""
                self._send(trainer.peer, BeatBack(message.number, waiting))
                self._ask(trainer)
            case LeaveJob():
                self._leaving.add(trainer.peer)
                self._remove(trainer)
            case CountLabels():
                self._count(trainer, message)
            case WantBatches() | LostPieces():
                if trainer.stopped is not None and message.run <= trainer.stopped.run:
                    self._send(trainer.peer, trainer.stopped)
                elif trainer.begun is None or trainer.begun.run < message.run:
                    self._send(trainer.peer, UnknownPeer())
                elif trainer.is_playing and message.run == trainer.begun.run:
                    if isinstance(message, WantBatches):
                        self._take_wants(trainer, message)
                    else:
                        self._take_lost(trainer, message)

    def _ask(self, trainer: TrainerPeer) -> None:
        if trainer.is_asked:
            self._send(trainer.peer, UnknownPeer())

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
        trainer.begun, trainer.is_asked, trainer.stopped = message, False, None
        key = trainer.key
        assert key is not None
        self._starts[key] += len(trainer.hello.ranks)
        if self.attempt is not None and self.attempt.key == key:
            self._begin_again(trainer)
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
                self._free(self._queues[rank].drop(trainer.peer))
                self._look_at(self._queues[rank])

    def _begin_again(self, newcomer: TrainerPeer) -> None:
        """Ask all in the current run where they stand: a newcomer may need what was freed."""
        self._stop()
        for trainer in self._seats.peers.values():
            if trainer is not newcomer and trainer.key == newcomer.key:
                self._unstate(trainer)
                trainer.is_asked = True
                self._ask(trainer)

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
        if is_apart or self._ready is None or self.attempt is not None or not self._starts:
            self._since.pop("missing", None)
            if self._has_lasted("apart", is_apart, APART_S):
                self._fail([*self._seats.peers.values()], self._why_apart(), False)
            return
        seats = self._seats
        if sum(self._starts.values()) < seats.taken:
            self._since.pop("missing", None)
        elif seats.is_full or self._may_do_without():
            self._since.clear()
            self._start(min(self._starts, key=lambda key: key.run))

    def _may_do_without(self) -> bool:
        """Return whether a run begins although some stay away; it fails where that lasts."""
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

    # --- giving

    @property
    def _run(self) -> int:
        assert self.attempt is not None, "no run is played"
        return self.attempt.key.run

    def _take_wants(self, trainer: TrainerPeer, message: WantBatches) -> None:
        for rank, upto, have in message.wants:
            if rank in trainer.hello.ranks:
                queue = self._queues[rank]
                self._free(queue.take(trainer.peer, upto, have, self._now))
                self._look_at(queue)

    def _look_at(self, queue: RankQueue) -> None:
        if queue.wants_more:
            self.to_look_at[queue.rank] = None

    def _pack(self, batch: QueuedBatch) -> GiveBatch:
        return pack_batch(batch, self._run, self._generation, self._token_of)

    def _take_lost(self, trainer: TrainerPeer, message: LostPieces) -> None:
        if message.rank not in trainer.hello.ranks:
            return
        batch = self._queues[message.rank].find(message.index)
        if batch is None or batch.ticket is None or not batch.is_there:
            return
        packed = self._pack(batch)
        if packed.version != message.version:  # that was lost, or of a former attempt
            if batch.index < self._queues[message.rank].takers[trainer.peer].sent:
                self._send(trainer.peer, packed)
        elif max(message.pieces, default=0) < len(packed.pieces):
            self.lost.append(Lost(batch.ticket, trainer.peer, message))

    def _free(self, batches: list[QueuedBatch]) -> None:
        for batch in batches:
            if batch.ticket is not None:
                self._tickets.pop(batch.ticket.number, None)
                self.freed.append(batch.ticket)

    def _send(self, peer: bytes, message: ToTrainer) -> None:
        self._out.append((peer, message))

    # --- labels, and what is waited for

    def _count(self, trainer: TrainerPeer, message: CountLabels) -> None:
        if message.rank not in trainer.hello.ranks:
            return
        try:
            settled = self._labels.count(trainer.peer, message, self._seats.peers)
        except ValueError as error:
            self.fail(str(error))
            return
        for peer in settled[1] if settled is not None else ():
            self._send(peer, settled[0])

    def _waiting(self, trainer: TrainerPeer) -> str:
        """Return what a process waits for, as text."""
        if self._ready is None:
            return "a worker that can read the data"
        if (counts := self._labels.lacking(trainer.peer)) is not None:
            ranks = ", ".join(map(str, counts[2][:8]))
            return f"the label tokens of step {counts[1]} from ranks {ranks}"
        if not trainer.is_playing:
            return self._waiting_for()
        queues = [self._queues[rank] for rank in trainer.hello.ranks]
        queue = min(queues, key=lambda each: (each.takers[trainer.peer].have, each.rank))
        taker = queue.takers[trainer.peer]
        if taker.have < queue.next and taker.sent < queue.next:
            slowest = min(queue.takers.values(), key=lambda each: each.have)
            if slowest is not taker:
                return f"{self._seats.peers[slowest.peer].name}, which shares rank {queue.rank}"
        gone = self._waiting_for() if self._seats.gone else ""
        return "; ".join(filter(None, (self._waits_for(queue.rank), gone)))

    def _waiting_for(self) -> str:
        """Return which processes are waited for; found out once a second, however many ask."""
        if self._now > self._missing[0] + 1:
            who = self._why_apart() if self._is_apart() else ""
            if not who and not self._seats.is_full:
                who = f"{self._seats.missing()}: not here"
            if not who:
                late = [t.name for t in self._seats.peers.values() if t.begun is None]
                who = f"{', '.join(late[:4])}, to begin the run"
            self._missing = self._now, who
        return self._missing[1]
