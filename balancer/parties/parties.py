"""The trainers of a job at its balancer: who they are, what they may have, what they have.

Sans-IO: messages and a time in seconds in; messages, tickets to free and the current run out.
"""

from collections.abc import Sequence

from ..pool.tickets import Ticket
from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..run.arrivals import MicrobatchFacts
from ..run.tasks import Made
from .begun_runs import MISSING_S, BegunRuns
from .gives import Lost, RankQueue
from .messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    FromTrainer,
    JobReady,
    JoinJob,
    LeaveJob,
    LostPieces,
    ToTrainer,
    TrainerBeat,
    WantBatches,
)  # fmt: skip
from .seats import TrainerPeer

# A process that was not heard for this long is in question, and dead; of one host it is dead that
# cannot be reached for so long.
QUIET_S, SILENT_S, UNREACHABLE_S = 10.0, 30.0, 5.0
# Those of one host may be silent: what is sent to them after so long shows whether they are there.
PROBE_S = 1.0
# So many that leave a job in which they were not are answered; the others ask again.
MOST_LEAVING = 1024


class Parties(BegunRuns):
    """The trainers of a job of so many ranks.

    attempt: what is to be played; None where nothing is. run_begun: the number of the run that all
    have begun. freed, lost, changes: for the caller, who
    empties them; of `freed` each ticket comes once, changes: who has come ("join"), has left, or is
    lost; notices: what to tell whom for its log. to_look_at: ranks that may want more since it was
    emptied.
    """

    # --- what happens

    def receive(self, peer: bytes, message: FromTrainer, now: float) -> None:
        """Apply a message of a process."""
        self._now = now
        trainer = self._seats.peers.get(peer)
        if isinstance(message, JoinJob):
            self._join(peer, message, trainer)
        elif trainer is None:
            if isinstance(message, LeaveJob):
                if len(self._leaving) < MOST_LEAVING:
                    self._leaving.add(peer)
                self._say_bye()
            else:
                self._send(peer, UnknownPeer())
        else:
            trainer.heard_at = now
            trainer.stats.note(message, now)
            self._apply(trainer, message)

    def in_question(self, now: float) -> list[bytes]:
        """Return of whom it is to be found out if they are here: all, if newcomers wait for it."""
        since = now if self._seats.in_way_of_newcomers(now) else now - QUIET_S
        return [peer for peer, each in self._seats.peers.items() if each.heard_at < since]

    def confirm(self, peer: bytes, now: float) -> None:
        """Take note that a process is alive: its host has what was sent."""
        if (trainer := self._seats.peers.get(peer)) is not None:
            trainer.heard_at = now

    def note_unreachable(self, peer: bytes, now: float) -> None:
        """Take note that nothing can be sent to a process: it comes back, or its successor has."""
        if (trainer := self._seats.peers.get(peer)) is not None:
            trainer.is_reached = False
            if self._seats.in_way_of_newcomers(now):
                self._now = now
                self._remove(trainer, "lost")

    def tick(self, now: float) -> None:
        """Do what the time asks for; to be called about once a second."""
        self._now = now
        if self._on_host:
            self._look_for_ended()
        else:
            for trainer in self._seats.silent(now - SILENT_S):
                self._remove(trainer, "lost")
        lost = self._labels.lacking_ranks() - self._seats.ranks_here
        if self._has_lasted("counts", bool(lost), MISSING_S):
            self.fail(
                f"ranks {', '.join(map(str, sorted(lost)[:8]))} have gone, and the others have "
                f"waited {MISSING_S:.0f} s for the label tokens that they have counted: restart "
                "all ranks from the last ledger"
            )
        self._look()

    def _look_for_ended(self) -> None:
        """Forget processes that have ended; the others fail without what one of them lacked.

        One that is silent may just train, or be stopped.
        """
        for trainer in self._seats.silent(self._now - PROBE_S):
            if trainer.is_reached:
                trainer.heard_at = self._now
            elif trainer.heard_at < self._now - UNREACHABLE_S:
                is_lacking = self._lacks_some(trainer)
                self._remove(trainer, "lost")
                if is_lacking:
                    self.fail(
                        f"{trainer.name}, which shares data-parallel rank "
                        f"{trainer.hello.ranks[0]} with others, has ended or cannot be reached: "
                        "restart all ranks from the last ledger"
                    )
                continue
            trainer.is_reached = True
            self._send(trainer.peer, BeatBack(0, ""))

    def _lacks_some(self, trainer: TrainerPeer) -> bool:
        """Return whether a process has not had all of the run that is played."""
        queues = [self._queues[rank] for rank in trainer.hello.ranks if trainer.is_playing]
        return any(q.end is None or q.takers[trainer.peer].have < q.next for q in queues)

    def take_messages(self) -> list[tuple[bytes, ToTrainer]]:
        """Return what is to be sent, and to whom."""
        messages, self._out = self._out, []
        return messages

    @property
    def peers(self) -> dict[bytes, TrainerPeer]:
        """The processes that are here."""
        return self._seats.peers

    @property
    def is_empty(self) -> bool:
        """True if no process is here."""
        return not self._seats.peers

    @property
    def queues(self) -> Sequence[RankQueue]:
        """What each rank was given of the current run; none where nothing is played."""
        return self._queues

    # --- what the caller has

    def set_ready(self, count: int, fingerprint: str) -> None:
        """Say what the workers have said of the data: runs may begin."""
        self._ready = JobReady(count, fingerprint)
        for peer in self._seats.peers:
            self._send(peer, self._ready)
        self._look()

    def withdraw(self) -> None:
        """Let runs wait for other data: nobody has had a part of these."""
        self._ready = None
        self._stop()

    @property
    def samples_needed(self) -> set[int]:
        """The numbers of samples of the data that processes go on in."""
        begun = (trainer.begun for trainer in self._seats.peers.values())
        return {message.samples for message in begun if message is not None} - {-1}

    def wanted(self, rank: int) -> bool:
        """Return whether a rank may be given one more."""
        return self.attempt is not None and self._queues[rank].wants_more

    def lacks(self, rank: int) -> bool:
        """Return whether a rank has nothing left of what it was given."""
        return self.attempt is None or self._queues[rank].first == self._queues[rank].next

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

    def fail(self, reason: str, comes_again: bool = False) -> bool:
        """Stop the run for all who are in it, or have begun one that cannot be played.

        Returns whether there are any.
        """
        peers, is_played = self._seats.peers.values(), self.attempt is not None
        begun = [p for p in peers if p.is_playing or (p.begun is not None and not is_played)]
        self._fail(begun, reason, comes_again)
        return bool(begun)

    def give_up(self, reason: str) -> bool:
        """Stop what was begun, and end who waits for data: no worker can do the job."""
        for peer, trainer in self._seats.peers.items():
            if self._ready is None and trainer.begun is None and trainer.stopped is None:
                self._send(peer, PeerRejected(reason))
        return self.fail(reason)

    # --- joining and leaving

    def _join(self, peer: bytes, hello: JoinJob, trainer: TrainerPeer | None) -> None:
        if trainer is None or trainer.hello != hello:
            if trainer is not None:  # it says something else than before
                self._remove(trainer, "leave")
            for older in self._seats.older_than(hello):
                self._remove(older, "leave")
            may_sit = self._seats.may_sit(peer, hello, self._now)
            if may_sit is not True:
                if may_sit:
                    self._send(peer, PeerRejected(may_sit))
                for holder in self._seats.in_way(hello):
                    if may_sit:
                        self.notices.append((holder.peer, may_sit))
                    else:  # one that is gone cannot be reached
                        self._send(holder.peer, BeatBack(0, ""))
                return
            self._leaving.discard(peer)
            self._seats.add(TrainerPeer(peer, hello, self._now))
            self.changes.append(("join", hello))
        else:
            trainer.heard_at = self._now
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
        if not self._seats.peers:
            for peer in sorted(self._leaving):
                self._send(peer, Bye())
            self._leaving.clear()

    # --- beginning

    def _apply(self, trainer: TrainerPeer, message: FromTrainer) -> None:
        match message:
            case BeginRun():
                self._begin(trainer, message)
            case TrainerBeat():
                waiting = self.waiting(trainer) if message.asks else ""
                self._send(trainer.peer, BeatBack(message.number, waiting))
                if trainer.is_asked:
                    self._send(trainer.peer, UnknownPeer())
            case LeaveJob():
                self._leaving.add(trainer.peer)
                self._remove(trainer, "leave")
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

    # --- giving

    def _take_wants(self, trainer: TrainerPeer, message: WantBatches) -> None:
        for rank, upto, have in message.wants:
            if rank in trainer.hello.ranks:
                queue = self._queues[rank]
                self._free(queue.take(trainer.peer, upto, have, self._now))
                self._look_at(queue)

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

    # --- labels, and what is waited for

    def _count(self, trainer: TrainerPeer, message: CountLabels) -> None:
        if message.rank not in trainer.hello.ranks:
            return
        try:
            settled = self._labels.count(trainer.peer, message, self._seats.peers)
        except ValueError as error:
            self.fail(str(error))
            return
        if settled is not None:
            for peer in settled[1]:
                self._send(peer, settled[0])

    def waiting(self, trainer: TrainerPeer) -> str:
        """Return what a process waits for, as text."""
        if self._ready is None:
            return self._waits_for(trainer.hello.ranks[0])
        if (counts := self._labels.lacking(trainer.peer)) is not None:
            return counts
        if not trainer.is_playing:
            return self.waiting_for()
        queues = [self._queues[rank] for rank in trainer.hello.ranks]
        queue = min(queues, key=lambda each: (each.takers[trainer.peer].have, each.rank))
        taker = queue.takers[trainer.peer]
        if taker.have < queue.next and taker.sent < queue.next:
            slowest = min(queue.takers.values(), key=lambda each: each.have)
            if slowest is not taker:
                return f"{self._seats.peers[slowest.peer].name}, which shares rank {queue.rank}"
        if taker.have < taker.sent:
            return "what it was sent, which must arrive"
        gone = self.waiting_for() if self._seats.gone else ""
        return "; ".join(filter(None, (self._waits_for(queue.rank), gone)))

    def waiting_for(self) -> str:
        """Return which processes are waited for; found out once a second, however many ask."""
        if self._now > self._missing[0] + 1:
            who = self._why_apart() if self._is_apart() else ""
            if not who and not self._seats.is_full:
                who = f"{self._seats.missing()}: not here"
            if not who:
                peers = self._seats.peers.values()  # who plays is in a run before it
                late = [t.name for t in peers if t.begun is None or t.is_playing]
                who = f"{', '.join(late[:4])}, to begin the run"
            self._missing = self._now, who
        return self._missing[1]
