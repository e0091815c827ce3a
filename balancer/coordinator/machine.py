"""The coordinator: order, leases, plan and delivery, without a socket and without a clock.

Theory of operation. `handle` takes a peer's message and returns what to send; `tick` does the same
for the passing of time. Each looks up (state of the peer, message) in the table, calls the action
of that name, and then *settles*: plans what can be planned, sends every microbatch that is asked
for and ready, and gives idle workers leases. Nothing else sends anything.

There is one job at a time, and of it one run. A rank that begins the next run (the next epoch)
waits until all ranks have left the one before.
"""

import math
from collections.abc import Sequence

from ..protocol.messages import Bye, EpochEnd, Lease, Message, RequestBatch, Revoke
from .peers import Send, WorkerPeer
from .rank_handlers import RankHandlers
from .run.epoch import LEASES_PER_WORKER, EpochRun
from .worker_handlers import WorkerHandlers

# A worker that has not been heard of for so long is told something every second, which fails at
# once if its connection is closed.
WORKER_DOUBT_S = 2.5
# A rank may be silent for as long as it likes (it trains). This often peers are told that we are
# here, which also shows whether they still are.
NOTICE_S = 10.0
NO_LEASE = 0


class Coordinator(WorkerHandlers, RankHandlers):
    """The state machine behind the balancer's socket."""

    # --- events in, effects out

    def handle(
        self,
        peer: bytes,
        message: Message,
        payloads: Sequence[object] = (),
        nbytes: int = 0,
        now: float = 0.0,
    ) -> list[Send]:
        """Take in one message with its payload frames (`nbytes` in all); return what to send."""
        self._now = now
        if peer in self._workers:
            self._workers[peer].heard = now
        self._step(peer, type(message).__name__, message, payloads, nbytes)
        return self._settle()

    def gone(self, peer: bytes, undelivered: Message, now: float) -> list[Send]:
        """Take in that a peer cannot be reached any more: this message did not get there."""
        self._now = now
        if self.run is not None and isinstance(undelivered, Lease):
            self.run.withdraw(undelivered.lease)
        self._step(peer, "gone", None)
        return self._settle()

    def tick(self, now: float) -> list[Send]:
        """Take in the time: silent workers, late leases, peers to be told that we are here."""
        self._now = now
        for worker in list(self._workers.values()):
            silent, untold = now - worker.heard, now - worker.told
            if silent > self._silence_s():
                self._step(worker.peer, "silence", None)
            elif untold > (1.0 if silent > WORKER_DOUBT_S else NOTICE_S):
                if self._states.get(worker.peer) == "worker preparing":
                    self._send_job(worker.peer, None)
                else:
                    self._send(worker.peer, Revoke(NO_LEASE))
        if self.run is not None:
            for held in self.run.expire(now, self._surely_in_hand):
                self.books.expired, self.books.expired_at = self.books.expired + 1, now
                self._send(held.worker, Revoke(held.number))
                if held.worker in self._workers:
                    self._workers[held.worker].late = True
                    self._send_job(held.worker, None)
        for peer, hello in self._knocking.items():
            if peer in self._states:
                continue
            self._states[peer] = "rank attached"
            self._admit(peer, hello)
            if self._states.get(peer) == "absent":
                del self._states[peer]
        self._knocking.clear()
        self._look_apart()
        self._look_missing()
        self._look_held_up()
        for rank in self._ranks.values():
            if now - rank.told > NOTICE_S:
                self._answer(rank.peer, None)
        return self._settle()

    def stop(self) -> list[Send]:
        """Return what to send before the balancer ends."""
        self._fail("protocol", "the balancer was stopped: start it again, and the trainer")
        return self._settle()

    def next_deadline(self) -> float:
        """Return the latest time at which `tick` must be called."""
        silence = min((w.heard for w in self._workers.values()), default=math.inf)
        notice = min((r.told for r in self._ranks.values()), default=math.inf)
        lease = self.run.next_deadline() if self.run else math.inf
        apart = self._now + 1.0 if self._apart_since < math.inf else math.inf
        return min(silence + self._silence_s(), notice + NOTICE_S, lease, apart) + 0.01

    def _silence_s(self) -> float:
        """How long a worker may be silent: never for longer than a lease lasts."""
        return min(self.silence_s, self.run.job.lease_s) if self.run else self.silence_s

    def _settle(self) -> list[Send]:
        self._guard(lambda run: run.advance())
        self._deliver()
        self._revoke_useless()
        self._grant()
        self._let_go()
        out, self._out = self._out, []
        return out

    def _deliver(self) -> None:
        run = self.run
        for ask, peer in self._asks.of(run.number) if run is not None else []:
            end = run.past_end(ask.step) if run is not None else None
            if self.trouble is not None:
                self._finish(peer, self.trouble)
            elif end is not None:
                self._finish(peer, EpochEnd(ask.run, end))
            elif run is None or not self._hand_out(run, ask, peer):
                continue
            self._asks.done(ask)

    def _revoke_useless(self) -> None:
        for held in self.run.leases.take_useless() if self.run is not None else []:
            self._send(held.worker, Revoke(held.number))

    def _hand_out(self, run: EpochRun, ask: RequestBatch, peer: bytes) -> bool:
        """Send a microbatch if it is ready; one that cannot be used ends the run."""
        parcel = run.parcel(ask.rank, ask.step, ask.microbatch, self._now)
        if parcel is None:
            return False
        if parcel.fatal is not None:
            self._fail("data", f"sample {parcel.fatal.key!r}: {parcel.fatal.reason}")
        else:
            self._send(peer, parcel.message, parcel.payloads)
            run.delivery.sent(ask.rank, ask.step, ask.microbatch, self._now)
        return True

    def _let_go(self) -> None:
        """Say goodbye to ranks that have left, once no other needs this balancer's run."""
        if self._leaving and all(r.finished or not r.begun for r in self._ranks.values()):
            for peer in sorted(self._leaving):
                self._send(peer, Bye())
            self._leaving.clear()

    def _grant(self) -> None:
        """Give leases to those who have fewest, until nobody can take any."""
        run = self.run
        if run is None or self.trouble is not None:
            return
        ready = list(self._ready_workers())
        idle = [w for w in ready if run.leases.count(w.peer) < LEASES_PER_WORKER]
        while idle:
            idle.sort(key=lambda worker: run.leases.count(worker.peer))
            still: list[WorkerPeer] = []
            for worker in idle:
                lease = run.grant(worker.view, self._now, len(ready))
                if lease is not None:
                    self._send(worker.peer, lease)
                    still.append(worker)
            idle = still
