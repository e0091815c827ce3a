"""What the coordinator does with workers: the actions of their rows in the table."""

from ..protocol.clock_offset import Offset, bounded
from ..protocol.job_spec import to_json
from ..protocol.messages import (
    Bye,
    DecodeDone,
    HeartbeatAck,
    PeerRejected,
    ProbeDone,
    Ready,
    Revoke,
    SampleFailed,
    UnknownPeer,
    Welcome,
    WorkerBye,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from .peers import WorkerPeer, why_worker_refused
from .run.poison_samples import EMPTY_HAND, Hand
from .state import CoordinatorState
from .worker_stats import WorkerStats

# What a beat says of the work in hand is taken to be so still for so long.
BEAT_FRESH_S = 2.5
# A worker that says twice that it does nothing does not have what it was given so long ago.
IDLE_S = 2.0


class WorkerHandlers(CoordinatorState):
    """Workers come, get the job, do its leases and go; see protocol/transitions.py."""

    def _greet_worker(self, peer: bytes, hello: WorkerHello) -> None:
        if peer in self._workers and self._workers[peer].hello == hello:
            return  # it waits for a job, and says so again
        namesakes = [w for w in self._workers.values() if w.hello.name == hello.name]
        if any(old.hello.incarnation > hello.incarnation for old in namesakes):
            self._send(peer, Bye())
            if peer in self._workers:
                self._lose_worker(peer, None)
            self._states[peer] = "absent"
            return
        for old in namesakes:
            self._lose_worker(old.peer, None)
        self._see_worker(hello.name, hello.incarnation)
        for old in namesakes:
            if old.peer != peer:
                self._states.pop(old.peer, None)
        tally = WorkerStats(self._now)
        self._workers[peer] = WorkerPeer(peer, hello, self._now, self._now, tally=tally)
        if self.job is not None:
            self._step(peer, "job", None)

    def _hear_again(self, _: bytes, __: WorkerHello) -> None:
        """A worker said hello once more than it had to."""

    def _send_job(self, peer: bytes, _: None) -> None:
        source = self.job is not None and self.job.source
        text = to_json(self.job) if self.job and source else ""
        self._send(peer, Welcome(text, self._welcome))

    def _forget_source(self, peer: bytes, _: None) -> None:
        if self.run is not None:
            self.run.lose_worker(peer)

    def _hear_ready(self, peer: bytes, ready: WorkerReady) -> None:
        """A worker has answered a welcome again: it is there, and not at work on a lease."""
        if ready.number == self._welcome:
            self._workers[peer].late = False

    def _accept_worker(self, peer: bytes, ready: WorkerReady) -> None:
        if ready.number != self._welcome:
            self._states[peer] = "worker preparing"
            self.dropped += 1
            return
        first = not self.fingerprint
        reason = why_worker_refused(self.job, self.count, self.fingerprint, ready)
        if reason:
            self._send(peer, PeerRejected(reason))
            self.books.turn_away(self._workers[peer].hello.name, reason)
            self._workers.pop(peer, None)
            self._states[peer] = "absent"
            return
        self._workers[peer].fingerprint = ready.fingerprint
        if first:
            self.count, self.fingerprint = ready.count, ready.fingerprint
            for rank in self._ranks.values():
                self._send(rank.peer, Ready(self.count, self.fingerprint))
            self._switch_run()

    def _report_worker(self, peer: bytes, failed: WorkerFailed) -> None:
        if failed.number != self._welcome:
            self._states[peer] = "worker preparing"
            self.dropped += 1
            return
        self._fail("worker", f"worker {self._workers[peer].hello.name}: {failed.reason}")

    def _take_costs(self, peer: bytes, message: ProbeDone) -> None:
        self._note_done(peer, probed=len(message.results))
        if self.run is not None:
            self._guard(lambda run: run.probed(peer, message, self._now))

    def _take_payload(self, peer: bytes, message: DecodeDone, payload: object, nbytes: int) -> None:
        self._note_done(peer, decoded=1, nbytes=nbytes)
        self._guard(lambda run: run.decoded(peer, message, payload, nbytes, self._now))

    def _take_failure(self, peer: bytes, message: SampleFailed) -> None:
        self._note_done(peer, failed=1)
        self._guard(lambda run: run.failed(peer, message, self._now))

    def _note_done(self, peer: bytes, **counts: int) -> None:
        worker = self._workers[peer]
        worker.late = False
        worker.tally.add(self._now, **counts)

    def _release_worker(self, peer: bytes, _: WorkerBye) -> None:
        self._workers.pop(peer, None)
        if self.run is not None:
            self.run.lose_worker(peer)

    def _lose_worker(self, peer: bytes, _: None) -> None:
        """A worker is not heard of, or another process has its name."""
        worker = self._workers.pop(peer, None)
        if worker is not None:
            self.books.lose(worker.hello.name, self._now)
        if self.run is not None and worker is not None:
            name, incarnation = worker.hello.name, worker.hello.incarnation
            self.run.miss_worker(peer, name, incarnation, worker.hand, worker.heard)

    def _see_worker(self, name: str, incarnation: int) -> None:
        """A worker shows that it is there."""
        self._guard(lambda run: run.see_worker(name, incarnation))

    def _surely_in_hand(self, peer: bytes) -> Hand:
        """Return what a worker works on, if it has said so lately."""
        worker = self._workers.get(peer)
        if worker is None or self._now - worker.beaten > BEAT_FRESH_S:
            return EMPTY_HAND
        return worker.hand

    def _note_beat(self, peer: bytes, beat: WorkerHeartbeat) -> None:
        """A beat comes by a connection of its own; a worker we have lost must introduce itself."""
        known = False
        self._see_worker(beat.name, beat.incarnation)
        for worker in self._workers.values():
            if (worker.hello.name, worker.hello.incarnation) == (beat.name, beat.incarnation):
                worker.heard, worker.beaten, known = self._now, self._now, True
                self._note_hand(worker, (beat.lease, beat.ordinal))
                worker.tally.at_work(self._now, bounded(beat.probe_ms), bounded(beat.decode_ms))
                worker.clock = Offset(bounded(beat.ahead_us), bounded(beat.error_us))
        if not known:
            self._send(peer, UnknownPeer())
        elif beat.number:
            self._send(peer, HeartbeatAck(beat.number, self.books.clock_us(self._now)))

    def _note_hand(self, worker: WorkerPeer, hand: Hand) -> None:
        """A worker that has another sample in hand gets on; one that has none may want a lease."""
        before, worker.hand = worker.hand, hand
        if hand not in (before, EMPTY_HAND) and self.run is not None:
            self.run.leases.renew(worker.peer, self._now)
        if before == hand == EMPTY_HAND:
            self._look_idle(worker)

    def _look_idle(self, worker: WorkerPeer) -> None:
        """Take back leases that were lost on their way, there or back, and be sure it is heard."""
        lost = self.run.take_back_lost(worker.peer, self._now - IDLE_S) if self.run else []
        for held in lost:
            self._send(worker.peer, Revoke(held.number))
        if lost or worker.late:
            worker.late = True
            self._send_job(worker.peer, None)
