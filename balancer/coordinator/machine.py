"""The coordinator: order, leases, plan and delivery, without a socket and without a clock.

Theory of operation. `handle` receives a peer's message and returns what to send; `tick` does the
same for the passing of time, `unreachable` for a message that could not be delivered. Each looks up
(state of the peer, event) in the table of `protocol/transitions.py`, calls the handler of the row's
action, and sets the state that the row has for the handler's outcome: states change here only. Then
the coordinator *settles*: it plans what can be planned, sends every microbatch that is asked for
and ready, and leases samples to idle workers.

The coordinator is one object in a few files, each a class that is built on the one before:
`CoordinatorState` has the data and walks the table, `RunControl` starts and stops the run and looks
after ranks that others wait for, `WorkerHandlers` and `RankHandlers` have a method for each action,
and `Coordinator` takes events in. `EpochRun` is one run.
"""

import math
from collections.abc import Sequence

from ..job.effects import Send
from ..protocol.messages import BalancerStops, Bye, EpochEnd, Message
from ..protocol.payload_messages import DecodeDone, Lease, RequestBatch, Revoke
from ..protocol.transitions import W_PREPARING, Event
from .delivery.sample import SampleFailure
from .peers.records import RankPeer
from .rank_handlers import RankHandlers
from .run.epoch import EpochRun
from .run.granting import HELP_AFTER_S, STEPS_AHEAD
from .state import NO_LEASE
from .worker_handlers import WorkerHandlers

# A worker without a heartbeat for this long is sent something every PROBE_WORKER_S, which fails at
# once if its connection is closed.
DOUBT_WORKER_S = 2.5
PROBE_WORKER_S = 1.0
# A rank may be silent for any time (it trains). Peers are sent something this often, which shows
# them that the balancer is here, and the server whether they are.
KEEPALIVE_S = 10.0
# Those that share a rank wait for each other: that one can be reached is found out this often.
PROBE_SHARER_S = 1.0
# Seconds between ticks, which look at all peers, leases and requests; without ranks at workers.
TICK_S, IDLE_TICK_S = 0.1, 1.0
# Microbatches that were lost on their way can be made again after some time: looked at so often.
LOOK_AGAIN_S = 1.0


class Coordinator(WorkerHandlers, RankHandlers):
    """The state machine behind the balancer's socket; its arguments are CoordinatorState's."""

    _ticked_at = _looked_at = -math.inf

    # --- events in, effects out

    def handle(
        self, peer: bytes, message: Message, payloads: Sequence[object] = (), now: float = 0.0
    ) -> list[Send]:
        """Receive one message with its payload frames; return what to send."""
        self.now = now
        if (known := self.workers.get(peer) or self.ranks.get(peer)) is not None:
            known.heard_at = now
        content = (message, payloads) if isinstance(message, DecodeDone) else message
        if not self.apply(peer, type(message).__name__, content):
            self.dropped += 1
            items = message.items if isinstance(message, DecodeDone) else ()
            if serials := [each.serial for each in items if each.serial]:  # they are not wanted
                self.kept.freed.setdefault(peer, []).extend(serials)
        return self._settle()

    def unreachable(self, peer: bytes, undelivered: Message, now: float) -> list[Send]:
        """Handle that a message could not be delivered: the peer is gone."""
        self.now = now
        if self.run is not None and isinstance(undelivered, Lease):
            lost = self.run.leases.pop(undelivered.lease)  # nobody was working on it
            self.run.give_back([lost] if lost is not None else [])
        self.apply(peer, Event.UNREACHABLE)
        return self._settle()

    def tick(self, now: float) -> list[Send]:
        """Handle the passing of time: heartbeat timeouts, expired leases, keepalives."""
        self.now = now
        self._check_heartbeats()
        for lease in self.run.return_expired(now, self.work_in_progress) if self.run else []:
            self.diagnostics.expired += 1
            self.diagnostics.expired_at = now
            self.send(lease.worker, Revoke(lease.number))
            self.doubt(lease.worker)  # it gets no more work before it answers
        for peer, (hello, since) in list(self.postponed.items()):
            if self.can_decide(hello, since):
                del self.postponed[peer]
                self.apply(peer, Event.POSTPONED_HELLO, hello)
        self.check_ranks()
        for rank in self.ranks.values():
            silent_s = now - rank.sent_at
            if silent_s > KEEPALIVE_S or (silent_s > PROBE_SHARER_S and self.sharers.others(rank)):
                self.send_pong(rank.peer)
        if now >= self._looked_at + LOOK_AGAIN_S:
            self._looked_at = now
            self.requests.look_at_all()
        self._help_slow_workers()
        sent = self._settle(may_wait=False)
        self._ticked_at = now
        return sent

    def stop(self) -> list[Send]:
        """Return what to send before the balancer ends: ranks wait for the one that follows."""
        sent = self._settle()
        for peer in sorted(self.ranks):
            self.send(peer, BalancerStops())
        for peer in sorted(self.leaving):
            self.send(peer, Bye())
        return [*sent, *self.take_outbox()]

    def next_deadline(self) -> float:
        """Return when `tick` must be called next: soon, while there is anybody to look after."""
        idle = self._ticked_at + IDLE_TICK_S if self.workers else math.inf
        return self._ticked_at + TICK_S if self.ranks or self.postponed else idle

    # --- time

    def _check_heartbeats(self) -> None:
        """Lose workers whose heartbeat timed out; send the others something now and then."""
        # Never longer than a lease lasts.
        timeout_s = min(self.heartbeat_timeout_s, self.run.job.lease_s if self.run else math.inf)
        for worker in list(self.workers.values()):
            silent_s, unsent_s = self.now - worker.heard_at, self.now - worker.sent_at
            if silent_s > timeout_s:
                self.apply(worker.peer, Event.HEARTBEAT_TIMEOUT)
            elif unsent_s > (PROBE_WORKER_S if silent_s > DOUBT_WORKER_S else KEEPALIVE_S):
                # A worker that has not opened the source may never have had the job.
                if self.state_of(worker.peer) == W_PREPARING:
                    self.send_job(worker.peer)
                else:
                    self.send(worker.peer, Revoke(NO_LEASE))

    # --- settling

    def _settle(self, may_wait: bool = True) -> list[Send]:
        """Do what has become possible; return what to send: see `take_outbox`."""
        self.guard(lambda run: run.feed.plan_ahead(STEPS_AHEAD))
        self._answer_requests()
        while self.run is not None and self.run.leases.useless:
            lease = self.run.leases.useless.pop(0)
            self.send(lease.worker, Revoke(lease.number))  # others have done its samples
            # It may hang: without this it would get samples again and again, and all wait for them.
            if lease.shown_at <= self.now - HELP_AFTER_S:
                self.doubt(lease.worker)
        self._grant_leases()
        # Ranks that have left are answered once no other rank needs this balancer's run.
        if self.leaving and not any(map(self._needs_run, self.ranks.values())):
            for peer in sorted(self.leaving):
                self.send(peer, Bye())
            self.leaving.clear()
        return self.take_outbox(may_wait)

    def _answer_requests(self) -> None:
        """Send what was asked for: a microbatch that is ready, the end of the epoch, a failure."""
        run = self.run
        if run is None:
            return
        for place in run.delivery.planned.take_changed():
            self.requests.look_at(*place)
        if run.feed.ended and not run.end_is_known:
            run.end_is_known = True
            self.requests.look_at_all()
        # Sending a microbatch may fail the run, and then all requests fail.
        while requests := self.requests.take(run.number):
            for request, peer in requests:
                is_over = run.feed.ended and request.step >= run.feed.step
                if self.failure is not None:
                    self.finish(peer, self.failure)
                elif is_over:
                    self.finish(peer, EpochEnd(request.run, run.feed.step, run.feed.left_out))
                elif not self._send_batch(run, request, peer):
                    continue
                self.requests.remove(request, peer)

    def _send_batch(self, run: EpochRun, request: RequestBatch, peer: bytes) -> bool:
        """Send a microbatch if it is ready; one that cannot be used ends the run."""
        rank, step, microbatch = request.rank, request.step, request.microbatch
        sharers, process = self.sharers, self.ranks[peer]
        if sharers.why_held_back(process, rank, step) is not None:
            return False
        batch = run.delivery.ready(rank, step, microbatch, self.now, peer)
        if batch is None:
            return False
        if batch.fatal is not None:
            sample = batch.fatal
            failure = sample.failure or SampleFailure("")
            place = f" of {failure.source}" if failure.source else ""
            self.fail(f"sample {sample.key!r}{place}: {failure.reason}")
        else:
            self.send(peer, batch.message, batch.payloads)
            process.was_served = True
            is_alone = sharers.is_alone(rank)
            waiting = () if is_alone else sharers.waiting_for(rank, (step, microbatch), run.number)
            run.delivery.mark_sent(rank, step, microbatch, self.now, peer, waiting)
        return True

    def _grant_leases(self) -> None:
        """Grant one lease after another to the worker with the fewest, until there is no work."""
        run = self.run
        if run is None or self.failure is not None:
            return
        # Whether there is work is asked before for whom: after most messages there is none.
        while (
            peer := self.pool.next_free(run.leases.count_or_full)
        ) is not None and run.has_work():
            worker = self.workers[peer]
            home = self.pool.home(worker.hello.name, run.job.plan.ranks)
            workers = len(self.pool.assignable)
            lease = run.grant(peer, self.now, workers, worker.stats.ms_each, home)
            if lease is None:
                return
            self.send(peer, lease)

    def _help_slow_workers(self) -> None:
        """Grant workers that have nothing to do what others are slow with."""
        run = self.run
        if run is None or self.failure is not None:
            return
        for peer in self.pool.idle(run.leases.count_or_full):
            lease = run.grant_shared(peer, self.now)
            if lease is None:
                return
            self.send(peer, lease)

    def _needs_run(self, rank: RankPeer) -> bool:
        """Return whether a rank may still ask for microbatches of its run.

        One that was sent the end may have to ask again for what it has not taken: that may lie in
        the memory of workers that end with those who leave.
        """
        run = self.run
        if rank.started is None or not rank.finished:
            return rank.started is not None
        if run is None or run.number != rank.started.run or self.failure is not None:
            return False
        return min(map(rank.reached, rank.hello.ranks)) < (run.feed.step, 0)
