"""Handlers of what workers send: hello, ready, results, heartbeats, goodbye.

Each is named in a row of `protocol/transitions.py` and returns the outcome that the row maps to the
worker's next state, or None where there is only one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.job_spec import to_json
from ..protocol.messages import (
    Bye,
    SampleFailed,
    UnknownPeer,
    Welcome,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
)
from ..protocol.parts import IDLE, DecodedItem, Ready, WorkInProgress
from ..protocol.payload_messages import DecodeDone, ProbeDone, Revoke, ServePayloads
from ..protocol.status_messages import bounded
from ..protocol.transitions import W_PREPARING, W_READY, Event, Outcome
from .delivery.sample import Payload
from .peers.admission import DataFacts, why_not_gone_on_in, why_other_version, why_worker_refused
from .peers.records import WorkerPeer, WorkerStats, why_not_direct
from .run.epoch import Blame, EpochRun
from .run.leases import GrantedLease
from .run_control import RunControl
from .state import MAX_REASON, MAX_RUBBISH, NO_LEASE

# A heartbeat's report of the work in progress is believed for this long.
HEARTBEAT_FRESH_S = 2.5
# A worker that reports twice to be idle does not have what it was leased this long ago.
IDLE_S = 2.0


class WorkerHandlers(RunControl):
    """The actions of the table that concern workers."""

    # --- joining

    def register_worker(self, peer: bytes, hello: WorkerHello) -> Outcome:
        """Register a worker process, and forget those that it replaces."""
        known = self.workers.get(peer)
        if known is not None and known.hello == hello:
            return Outcome.REPEATED  # it still waits for a job
        reason = why_other_version(hello.version)
        if reason:
            self.refuse(WorkerPeer(peer, hello, self.now, self.now), reason)
            self.lose_worker(peer)
            return Outcome.REFUSED
        same_name = self.pool.named(hello.name)
        if any(old.hello.incarnation > hello.incarnation for old in same_name):
            # This process was replaced, and goes on after a pause: its successor stays.
            self.send(peer, Bye())
            self.lose_worker(peer)
            return Outcome.REFUSED
        self.lose_worker(peer)  # that it was, maybe by another name
        for old in same_name:
            if old.peer != peer:
                self.apply(old.peer, Event.REPLACED)
        self.guard(lambda run: run.see_worker(hello.name, hello.incarnation))
        stats = WorkerStats(self.now)
        self.add_worker(WorkerPeer(peer, hello, self.now, self.now, stats=stats))
        if self.job is None:
            return Outcome.NO_JOB
        self.send_job(peer)
        return Outcome.JOB_SENT

    def send_job(self, peer: bytes, _: object = None) -> None:
        """Send the job; a worker that has its source open answers that it is ready."""
        job = self.job
        worker = self.workers[peer]
        worker.failure = ""
        server = worker.serves
        if job is not None and server is not None and not worker.why_inline:
            # Of a key pair the worker needs only the public key, of a password the whole.
            secret = b"" if server.public else server.secret
            kept_bytes = 0 if job.transport == "inline" else job.buffer_bytes
            self.send(peer, ServePayloads(server.token, kept_bytes, server.public, secret))
        text = to_json(job) if job is not None and job.source else ""
        self.send(peer, Welcome(text, self.last_welcome))

    def ignore(self, _: bytes, __: object) -> None:
        """Do nothing: a hello was repeated that was answered already."""

    def accept_worker(self, peer: bytes, ready: WorkerReady) -> Outcome:
        """Accept a worker that has opened the source, if its data are those of the others.

        What the first of them said holds as long as one that has said so is here, or a rank has had
        a part of it.
        """
        worker = self.workers[peer]
        if ready.number != self.last_welcome:
            return Outcome.OUTDATED
        holds = self.has_ready_worker or self.is_served
        facts = self.facts if holds else DataFacts()
        counts = self.samples_in_use()
        reason = why_worker_refused(facts, ready)
        reason = reason or why_not_gone_on_in(counts, ready.count)
        if not reason and (why := why_not_direct(worker, self.job)):
            self.turn_away(peer, why)
            return Outcome.REFUSED
        if reason and (holds or counts) and not worker.was_asked_again:
            worker.was_asked_again = True
            # First those who said otherwise: what is sent to one that has gone cannot be delivered.
            for other in self.workers:
                self.send(other, Revoke(NO_LEASE))
            for rank in self.ranks:
                self.send_pong(rank)
            self.send_job(peer)
            return Outcome.OUTDATED
        if reason:
            self.refuse(worker, reason)
            self.remove_worker(peer)
            self._fail_without_workers()
            return Outcome.REFUSED
        worker.fingerprint, self.refused = ready.fingerprint, ""
        found = DataFacts(ready.count, ready.fingerprint, worker.hello.name)
        if not holds and not found.agree_with(self.facts):
            self.forget_data()
        # The job can be done: those that cannot do it have the wrong data or settings.
        for worker in [each for each in self.workers.values() if each.failure]:
            self.apply(worker.peer, Event.TURNED_AWAY, worker.failure)
        if not self.is_ready:
            self.facts = found
            for rank in self.ranks:
                self.send(rank, Ready(found.count, found.fingerprint))
            self.start_next()
        return Outcome.ADMITTED

    def doubt(self, peer: bytes) -> None:
        """Lease no more to a worker, which may hang, before it has answered or shown a result."""
        worker = self.workers.get(peer)
        if worker is not None:
            self.set_unresponsive(worker, True)
            self.send_job(peer)

    def confirm_worker(self, peer: bytes, ready: WorkerReady) -> None:
        """Lease samples again to a worker that has answered: it is not stuck with a sample."""
        if ready.number == self.last_welcome:
            self.set_unresponsive(self.workers[peer], False)

    def report_worker_failure(self, peer: bytes, failed: WorkerFailed) -> Outcome:
        """Turn away a worker that could not open the source, if others could.

        While nobody has, the job may be wrong and not the worker: it waits for the next job. The
        run fails once there is no other that may still open the source.
        """
        if failed.number != self.last_welcome:
            return Outcome.OUTDATED
        if self.has_ready_worker:
            self.turn_away(peer, failed.reason)
            return Outcome.REFUSED
        self.workers[peer].failure = failed.reason
        self._fail_without_workers()
        return Outcome.DONE

    def turn_away(self, peer: bytes, reason: str) -> None:
        """Send a worker away for good, and give its work to others."""
        worker = self.workers[peer]
        name = worker.hello.name
        self.refuse(worker, f"this worker cannot do what others can: {reason}")
        self.release_worker(peer)
        if not self.workers:
            self.fail(f"worker {name}: {reason}; no other worker is left")

    def _fail_without_workers(self) -> None:
        """Fail the run if no worker is left that may open the source, and some have failed to."""
        failed = [worker for worker in self.workers.values() if worker.failure]
        working = (W_PREPARING, W_READY)
        if not failed or any(
            not worker.failure and self.state_of(worker.peer) in working
            for worker in self.workers.values()
        ):
            return
        others = f" (and so do {len(failed) - 1} others)" if len(failed) > 1 else ""
        last = failed[-1]
        self.fail(f"worker {last.hello.name}: {last.failure}{others}")

    # --- results

    def store_costs(self, peer: bytes, message: ProbeDone) -> Outcome:
        """Store the costs of probed samples."""
        self.workers[peer].stats.note_time("probe", message.usual_us)
        return self._judge(
            peer, lambda run: run.store_costs(peer, message, self.now), probed=len(message.results)
        )

    def store_payloads(self, peer: bytes, content: tuple[DecodeDone, Sequence[Any]]) -> Outcome:
        """Store the payloads of decoded samples; those without a serial have a frame each."""
        worker, (message, payloads) = self.workers[peer], content
        frames = iter(payloads)
        announced: list[tuple[DecodedItem, Payload]] = []
        for item in message.items:
            if item.serial:
                payload = self.kept.announce(peer, worker.serves, item)
            else:
                frame = next(frames)
                nbytes = memoryview(getattr(frame, "buffer", frame)).nbytes
                payload = Payload(item.header, nbytes, frame)
            if payload is not None:
                announced.append((item, payload))
        worker.stats.note_time("decode", message.usual_us)
        outcome = self._judge(
            peer,
            lambda run: run.store_payloads(peer, message.lease, announced, self.now),
            decoded=len(announced),
            nbytes=sum(payload.nbytes for _, payload in announced),
        )
        for _, payload in announced:
            if payload.serial and not payload.is_held:
                self.kept.free(payload)
        return outcome

    def store_failure(self, peer: bytes, message: SampleFailed) -> Outcome:
        """Store that a sample cannot be used."""
        return self._judge(peer, lambda run: run.store_failure(peer, message, self.now), failed=1)

    def _judge(
        self, peer: bytes, store: Callable[[EpochRun], list[Blame]], **counts: int
    ) -> Outcome:
        """Store a worker's result; turn those away that were blamed too often for rubbish."""
        worker = self.workers[peer]
        self.set_unresponsive(worker, False)
        worker.stats.add(self.now, **counts)
        outcome = Outcome.DONE
        for who, reason in self.guard(store) or ():
            blamed = self.workers.get(who)
            if blamed is None:
                continue
            blamed.rubbish += 1
            if blamed.rubbish < MAX_RUBBISH:
                continue
            self.costs.forget()  # it may have made up some of them
            if blamed is worker:
                self.turn_away(peer, reason)
                outcome = Outcome.REFUSED
            else:
                self.apply(who, Event.TURNED_AWAY, reason)
        return outcome

    # --- leaving

    def close_source(self, peer: bytes, _: object = None) -> None:
        """Take a worker's leases back: its job has ended."""
        if self.run is not None:
            self.run.give_back(self.run.leases.take_of_worker(peer))

    def release_worker(self, peer: bytes, _: object = None) -> None:
        """Forget a worker that says goodbye or was ended, and return its leases."""
        worker = self.remove_worker(peer)
        if self.run is not None:
            self.run.give_back(self.run.leases.take_of_worker(peer))
            self.run.delivery.decoding.drop_those_of(peer)
        if worker is not None and not worker.failure:
            self._fail_without_workers()

    def release_ended_workers(self, peer: bytes, ended: WorkersEnded) -> None:
        """Forget the workers that a trainer has ended: no sample is suspected of their end.

        With them goes what is known of samples' costs, and with the last that has its source open
        the facts about it: the next may have another data set, as a trainer's data set may change
        from one epoch to the next. The next may have said hello already: connections are read in
        turns.
        """
        names = set(ended.names)
        self.costs.forget()
        for worker in list(self.workers.values()):
            if worker.hello.name in names:
                self.apply(worker.peer, Event.ENDED)
        if not self.has_ready_worker:
            self.facts = DataFacts()
        elif self.is_ready:
            self.send(peer, Ready(self.facts.count, self.facts.fingerprint))

    def lose_worker(self, peer: bytes, _: object = None) -> None:
        """Forget a worker that is silent, unreachable or replaced, and return its leases."""
        worker = self.workers.get(peer)
        if worker is None:
            return
        name, incarnation = worker.hello.name, worker.hello.incarnation
        self.diagnostics.lost, self.diagnostics.lost_at = self.diagnostics.lost + 1, self.now
        self.diagnostics.last_lost.append(name[:MAX_REASON])
        if self.run is not None:
            last = worker.in_progress
            self.run.suspect_worker(peer, name, incarnation, last, worker.heard_at)
        self.release_worker(peer)

    # --- heartbeats

    def record_heartbeat(self, peer: bytes, heartbeat: WorkerHeartbeat) -> None:
        """Record a heartbeat, which comes over a connection of its own.

        A worker that is not registered (any more) is asked to introduce itself.
        """
        self.guard(lambda run: run.see_worker(heartbeat.name, heartbeat.incarnation))
        senders = [
            worker
            for worker in self.pool.named(heartbeat.name)
            if worker.hello.incarnation == heartbeat.incarnation
        ]
        for worker in senders:
            worker.heard_at = worker.heartbeat_at = self.now
            self._record_progress(worker, (heartbeat.lease, heartbeat.ordinal))
            told = heartbeat.probe_ms, heartbeat.decode_ms, heartbeat.cpu_ms
            worker.stats.record_work(self.now, *map(bounded, told))
            worker.clock.note(heartbeat.clock_us, self.diagnostics.clock_us(self.now))
            if heartbeat.leaving:
                self._let_go(worker)
        if not senders:
            self.send(peer, UnknownPeer())

    def _let_go(self, worker: WorkerPeer) -> None:
        """Lease no more to a worker that is to end; end it once nothing that it has is needed."""
        worker.leaving = True
        self.update_worker(worker.peer)
        leases = self.run.leases.count(worker.peer) if self.run is not None else 0
        if not leases and not self.kept.kept.get(worker.peer):
            self.send(worker.peer, Bye())
            self.apply(worker.peer, Event.ENDED)

    def work_in_progress(self, peer: bytes) -> WorkInProgress:
        """Return what a worker works on, IDLE if it has not reported it lately."""
        worker = self.workers.get(peer)
        if worker is None or self.now - worker.heartbeat_at > HEARTBEAT_FRESH_S:
            return IDLE
        return worker.in_progress

    def _record_progress(self, worker: WorkerPeer, now: WorkInProgress) -> None:
        """Record the sample that a worker works on.

        With another sample than before it makes progress, which renews its leases. Idle twice in a
        row, it does not have the leases that we think it has: they were lost on their way to it, or
        their results were. It gets no other work before it has answered a Welcome: the connection
        may be lost in one direction only.
        """
        before, worker.in_progress = worker.in_progress, now
        run, lost = self.run, list[GrantedLease]()
        if run is not None and now not in (before, IDLE):
            for lease in run.leases.of_worker(worker.peer):
                lease.deadline = self.now + run.leases.lease_s
        if before != IDLE or now != IDLE:
            return
        if run is not None:
            lost = run.leases.take_without_result(worker.peer, self.now - IDLE_S)
            run.give_back(lost)
        for lease in lost:
            self.send(worker.peer, Revoke(lease.number))
        if lost or worker.unresponsive:
            self.doubt(worker.peer)
