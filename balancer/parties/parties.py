"""The trainers of a job at its balancer: who they are, and which run they are in.

A run is begun once every process has begun it (RunKey says what must be alike), and played from the
one farthest behind; the others pass over what they have had. Where a process comes (back) to a run
that goes on all are asked where they stand (UnknownPeer), as by a balancer that was just started,
and the run begins again. Processes that are gone, or have begun a later run, need nothing.

Sans-IO: messages and a time in seconds in; messages, tickets to free and the current run out.
"""

from collections.abc import Callable, Iterable

from ..pool.tickets import Ticket
from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..protocol.parts import Ready
from .labels import LabelSums
from .messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    FromTrainer,
    JoinJob,
    LeaveJob,
    LostPieces,
    RunBegun,
    RunStops,
    ToTrainer,
    TrainerBeat,
    WantBatches,
)  # fmt: skip
from .run_attempt import Lost, RankQueue, RunAttempt, Taker
from .seats import Seats, TrainerPeer
from .starts import RunStarts

# A process may be silent, since it trains or is stopped: what is sent to it after so long shows
# whether it is there. One that cannot be reached for so long has ended.
PROBE_S, UNREACHABLE_S = 2.0, 5.0


class Parties:
    """The trainers of a job of so many ranks.

    peers: those that are here. attempt: what is to be played; None where nothing is. freed, lost,
    changes: for the caller, who empties them; of `freed` each ticket comes once; changes: who has
    come ("join"), has left, or is lost.
    """

    def __init__(
        self, ranks: int, generation: int, find_token: Callable[[bytes], int],
        describe_wait: Callable[[int], str] = lambda _: "its workers", on_host: bool = False,
    ) -> None:  # fmt: skip
        """`generation`: greater than that of a balancer before, and its runs: seconds will do.

        find_token: of a worker. describe_wait: what a rank's next microbatch waits for, as text.
        on_host: all are processes of this host, and have started the workers themselves.
        """
        self._seats = Seats(ranks)
        self.peers = self._seats.peers
        self._generation, self._find_token = generation, find_token
        self._describe_wait, self._on_host = describe_wait, on_host
        self.starts = RunStarts(self._seats, on_host)
        self._ready: Ready | None = None
        self._labels = LabelSums(ranks)
        self._leaving: set[bytes] = set()
        self._out: list[tuple[bytes, ToTrainer]] = []
        self._now = 0.0
        self.attempt: RunAttempt | None = None
        self.freed: list[Ticket] = []
        self.lost: list[Lost] = []
        self.changes: list[tuple[str, JoinJob]] = []

    # --- what happens

    def receive(self, peer: bytes, message: FromTrainer, now: float) -> None:
        """Apply a message of a process."""
        self._now = now
        trainer = self.peers.get(peer)
        if trainer is not None and not isinstance(message, JoinJob):
            trainer.heard_at = trainer.seen_at = now
        match message:
            case JoinJob():
                self._join(peer, message, trainer)
            case LeaveJob():
                self._leaving.add(peer)
                if trainer is not None:
                    self._remove(trainer, "leave")
                self._say_bye()
            case _ if trainer is None:  # lost meanwhile, or of a balancer before
                self._send(peer, UnknownPeer())
            case BeginRun():
                self._begin(trainer, message)
            case TrainerBeat():
                trainer.asked_at = now if message.asks else trainer.asked_at
                waiting = self.waiting(trainer) if message.asks else ""
                self._send(peer, BeatBack(message.number, waiting))
            case CountLabels() if message.rank in trainer.hello.ranks:
                try:
                    self._out += self._labels.count(peer, message, self.peers)
                except ValueError as error:
                    self.fail(str(error))
            case WantBatches() | LostPieces():
                self._apply(trainer, message)

    def note_unreachable(self, peer: bytes, now: float) -> None:
        """Take note that nothing can be sent to a process: it comes back, or its successor has."""
        if (trainer := self.peers.get(peer)) is not None:
            trainer.is_reached = False
            if self._seats.has_newcomers:
                self._now = now
                self._remove(trainer, "lost")

    def tick(self, now: float) -> None:
        """Do what the time asks for; to be called about once a second."""
        self._now = now
        self._seats.forget_waiting(now)
        for trainer in self._seats.silent(now - PROBE_S):
            self._probe(trainer)
        self._look()

    def _probe(self, trainer: TrainerPeer) -> None:
        """Send something to a silent process, or forget it if nothing has reached it for long.

        On one host the others fail without what it lacked.
        """
        if trainer.is_reached:
            trainer.seen_at = self._now
        if trainer.seen_at >= self._now - UNREACHABLE_S:
            trainer.is_reached = True
            self._send(trainer.peer, BeatBack(0, ""))
            return
        hindmost = self.find_hindmost(trainer)
        self._remove(trainer, "lost")
        if self._on_host and hindmost and not hindmost[0].is_over(hindmost[1].have):
            self.fail(
                f"{trainer.name}, which shares data-parallel rank {trainer.hello.ranks[0]} with "
                "others, has ended or cannot be reached: restart all ranks from the last ledger"
            )

    def take_messages(self) -> list[tuple[bytes, ToTrainer]]:
        """Return what is to be sent, and to whom."""
        messages, self._out = self._out, []
        return messages

    @property
    def is_empty(self) -> bool:
        """True if no process is here."""
        return not self.peers

    # --- what the caller has

    def set_ready(self, count: int, fingerprint: str) -> None:
        """Say what the workers have said of the data: runs may begin."""
        self._ready = Ready(count, fingerprint)
        for peer in self.peers:
            self._send(peer, self._ready)
        self._look()

    def withdraw(self) -> None:
        """Let runs wait for other data: no part of these was delivered."""
        self._ready = None
        self._stop()

    @property
    def samples_needed(self) -> set[int]:
        """The numbers of samples of the data that processes go on in."""
        begun = (trainer.begun for trainer in self.peers.values())
        return {message.samples for message in begun if message is not None} - {-1}

    def fail(self, reason: str, comes_again: bool = False) -> bool:
        """Stop what was begun, for all; return whether anything was."""
        begun = [(t, t.begun.run) for t in self.peers.values() if t.begun is not None]
        self._stop()
        for trainer, run in begun:
            trainer.stopped = RunStops(run, reason, comes_again)
            self._send(trainer.peer, trainer.stopped)
            self._unstate(trainer)
        return bool(begun)

    def give_up(self, reason: str) -> bool:
        """Stop what was begun, and end who waits for data: no worker can do the job."""
        for peer, trainer in self.peers.items():
            if self._ready is None and trainer.begun is None and trainer.stopped is None:
                self._send(peer, PeerRejected(reason))
        return self.fail(reason)

    # --- joining and leaving

    def _join(self, peer: bytes, hello: JoinJob, trainer: TrainerPeer | None) -> None:
        if trainer is None or trainer.hello != hello:
            if trainer is not None:  # it says something else than before
                self._remove(trainer, "leave")
            may_sit = self._seats.may_sit(peer, hello, self._now)
            if may_sit is not True:
                if may_sit:
                    self._send(peer, PeerRejected(may_sit))
                for holder in self._seats.find_holders(hello):  # one that is gone cannot be reached
                    self._send(holder.peer, BeatBack(0, ""))
                return
            self._leaving.discard(peer)
            self._seats.add(TrainerPeer(peer, hello, self._now, self._now))
            self.changes.append(("join", hello))
        else:
            trainer.heard_at = trainer.seen_at = self._now
        if self._ready is not None:
            self._send(peer, self._ready)

    def _remove(self, trainer: TrainerPeer, event: str) -> None:
        """Forget a process: it needs nothing more."""
        self.changes.append((event, trainer.hello))
        self._unstate(trainer)
        self._seats.remove(trainer)
        self._labels.remove(trainer.peer, trainer.hello.ranks)
        self._look()
        self._say_bye()

    def _say_bye(self) -> None:
        if not self.peers:
            for peer in sorted(self._leaving):
                self._send(peer, Bye())
            self._leaving.clear()

    # --- beginning

    def _begin(self, trainer: TrainerPeer, message: BeginRun) -> None:
        before = trainer.begun
        if trainer.stopped is not None and message.run <= trainer.stopped.run:
            self._send(trainer.peer, trainer.stopped)
        elif before is not None and message.run <= before.run:
            if message.run == before.run and self._playing(trainer) is not None:
                self._send(trainer.peer, RunBegun(message.run))
        else:
            is_new, trainer.is_new = trainer.is_new, False
            trainer.stopped, trainer.moved_at = None, self._now
            self._unstate(trainer, message)
            if self.starts.current == trainer.key:
                self._stop()  # a newcomer may need what was freed
                self._ask(
                    t for t in self.peers.values() if t is not trainer and t.key == trainer.key
                )
            elif self.attempt is None and is_new:
                # Those ahead of it may be of a former launch: it would begin without its own.
                trainers = [*self.peers.values()]
                self._ask(t for t in trainers if t.begun is not None and t.begun.run > message.run)
            self._look()

    def _ask(self, trainers: Iterable[TrainerPeer]) -> None:
        """Ask processes where they stand."""
        for trainer in trainers:
            self._unstate(trainer)
            self._send(trainer.peer, UnknownPeer())

    def _playing(self, trainer: TrainerPeer) -> RunAttempt | None:
        """Return the current run, if a process takes microbatches of it."""
        attempt, rank = self.attempt, trainer.hello.ranks[0]
        is_in = attempt is not None and trainer.peer in attempt.queues[rank].takers
        return attempt if is_in else None

    def _unstate(self, trainer: TrainerPeer, now: BeginRun | None = None) -> None:
        """Forget what a process has begun before `now`."""
        if (attempt := self._playing(trainer)) is not None:
            attempt.drop(trainer.peer, trainer.hello.ranks)
        self.starts.put(trainer, now)

    def _stop(self) -> None:
        """Forget the current run."""
        if self.attempt is not None:
            self.attempt.stop()
        self.attempt = self.starts.current = None

    def _look(self) -> None:
        """Begin the next run if its time has come, or find that it never will."""
        if self.attempt is not None and self.attempt.key not in self.starts:
            self._stop()
        try:
            key = self.starts.find_next(self._ready is not None, self._now)
            if key is not None:
                self._generation += 1
                self.starts.current = key
                self.attempt = RunAttempt(
                    key, self._seats.ranks, [t for t in self.peers.values() if t.key == key],
                    self._generation, self._find_token, self._send, self.freed.append,
                    lambda: self._now,
                )  # fmt: skip
        except ValueError as error:
            self.fail(str(error))

    # --- what processes say

    def _apply(self, trainer: TrainerPeer, message: WantBatches | LostPieces) -> None:
        if trainer.stopped is not None and message.run <= trainer.stopped.run:
            self._send(trainer.peer, trainer.stopped)
        elif trainer.begun is None or trainer.begun.run < message.run:
            self._send(trainer.peer, UnknownPeer())
        elif (attempt := self._playing(trainer)) is None or message.run != trainer.begun.run:
            pass  # of a run that has not begun here, or is over
        elif isinstance(message, WantBatches):
            trainer.waited_ms = message.waited_ms
            for rank, upto, have in message.wants:
                if rank in trainer.hello.ranks and attempt.take(trainer.peer, rank, upto, have):
                    trainer.moved_at = self._now
        elif message.rank in trainer.hello.ranks:
            self.lost += attempt.find_lost(trainer.peer, message)

    def find_hindmost(self, trainer: TrainerPeer) -> tuple[RankQueue, Taker] | None:
        """Return the rank of which a process has least of the current run, if it takes any."""
        if (attempt := self._playing(trainer)) is None:
            return None
        queues = [attempt.queues[rank] for rank in trainer.hello.ranks]
        takers = [(queue, queue.takers[trainer.peer]) for queue in queues]
        return min(takers, key=lambda pair: (pair[1].have, pair[0].rank))

    def waiting(self, trainer: TrainerPeer) -> str:
        """Return what a process waits for, as text."""
        if self._ready is None:
            return self._describe_wait(trainer.hello.ranks[0])
        if (counts := self._labels.lacking(trainer.peer)) is not None:
            return counts
        if (hindmost := self.find_hindmost(trainer)) is None:
            return self.starts.describe_wait(self._now)
        queue, taker = hindmost
        if taker.have < taker.sent:
            return "what it was sent, which must arrive"
        slowest = min(queue.takers.values(), key=lambda taker: taker.upto)
        if slowest.upto < taker.have:  # what is kept for it may leave no room
            return f"{self.peers[slowest.peer].name}, which shares rank {queue.rank}"
        gone = f"; {self.starts.describe_wait(self._now)}" if self._seats.gone else ""
        return self._describe_wait(queue.rank) + gone

    def _send(self, peer: bytes, message: ToTrainer) -> None:
        self._out.append((peer, message))
