"""The coordinator: order, leases, plan and delivery, without a socket and without a clock.

Theory of operation. `handle` receives a peer's message and returns what to send; `tick` does the
same for the passing of time, `unreachable` for a message that could not be delivered. Each looks up
(state of the peer, event) in the table of `protocol/transitions.py`, calls the handler of the row's
action, and sets the state that the row has for the handler's outcome: states change here only. Then
the coordinator *settles*: it plans what can be planned, sends every microbatch that is asked for
and ready, and leases samples to idle workers.

The parts, from the outside in: `WorkerHandlers` and `RankHandlers` have a method for each action,
`RankChecks` what depends on the time, `RunControl` starts and stops the run, `EpochRun` is one run,
and `CoordinatorState` is the data that they share.
"""

import math
from collections.abc import Callable, Sequence

from ..planning.planner import make_planner
from ..planning.problem.config import PlanConfig
from ..protocol.job_spec import JobSpec
from ..protocol.messages import (
    BalancerStops,
    Bye,
    DecodeDone,
    EpochEnd,
    Lease,
    Message,
    RequestBatch,
    Revoke,
)
from ..protocol.transitions import ABSENT, COORDINATOR, W_PREPARING, Event, Outcome
from .delivery.sample import SampleFailure
from .peers.records import MakeCredentials, RankPeer
from .rank_checks import RankChecks, send_pong
from .rank_handlers import RankHandlers
from .run.epoch import EpochRun, LayoutCheck
from .run.granting import HELP_AFTER_S, STEPS_AHEAD
from .run.planning_feed import WindowPlanner
from .run_control import RunControl
from .state import HEARTBEAT_TIMEOUT_S, NO_LEASE, CoordinatorState, Handler, Send
from .worker_handlers import DecodedSamples, WorkerHandlers

# A worker without a heartbeat for this long is sent something every PROBE_WORKER_S, which fails at
# once if its connection is closed.
DOUBT_WORKER_S = 2.5
PROBE_WORKER_S = 1.0
# A rank may be silent for any time (it trains). Peers are sent something this often, which shows
# them that the balancer is here, and the server whether they are.
KEEPALIVE_S = 10.0
# Those that share a rank wait for each other: that one can be reached is found out this often.
PROBE_SHARER_S = 1.0
# The next tick is due this long after a deadline, so that it has passed then.
MARGIN_S = 0.01
# A tick looks at all peers, leases and requests. So it finds the next deadline exactly, and after a
# message, which may have brought one, the next tick comes this soon, but no message has its own.
TICK_S = 0.1
# Microbatches that were lost on their way can be made again after some time: looked at so often.
LOOK_AGAIN_S = 1.0
# A rank whose admission was postponed waits no more after one of these: it says hello again and is
# admitted, it leaves, or is gone. Else it would be admitted, later, though it has left.
_LAST_WORDS = ("RankHello", "RankBye", Event.UNREACHABLE)


class Coordinator:
    """The state machine behind the balancer's socket."""

    def __init__(
        self,
        job: JobSpec | None = None,
        plan_with: Callable[[PlanConfig], WindowPlanner] = make_planner,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
        incarnation: int = 0,
        check_layout: LayoutCheck | None = None,
        make_credentials: MakeCredentials | None = None,
    ) -> None:
        """`job` is given where the balancer is started for it; else the first rank brings it.

        A worker that sends nothing for `heartbeat_timeout_s` is taken to be dead: infinity where a
        supervisor reports at once that one died (a call that holds Python's lock for long would
        be done again elsewhere otherwise). `incarnation` must differ from that of every balancer
        before at this address: it separates their lease numbers. `check_layout` finds samples of
        workers on other hosts that no rank could read; with it they are doubted in other ways, too.
        With `make_credentials` ranks may pull payloads from workers that listen for them.
        """
        self.state = CoordinatorState(
            job, plan_with, heartbeat_timeout_s, incarnation, check_layout, make_credentials
        )
        self.runs = RunControl(self.state)
        self.workers = WorkerHandlers(self.state, self.runs, self._apply)
        self.ranks = RankHandlers(self.state, self.runs, self._apply)
        self._rank_checks = RankChecks(self.runs)
        actions = {row.action for row in COORDINATOR.values()}
        self.handlers = {action: self._handler_of(action) for action in actions}
        self._ticked_at = self._looked_at = -math.inf
        self._deadline = math.inf
        self._has_changed = False

    def _handler_of(self, action: str) -> Handler:
        """Return the method that is named as an action of the table."""
        name = action.replace(" ", "_")
        handler: Handler = getattr(self.workers, name, None) or getattr(self.ranks, name)
        return handler

    # --- events in, effects out

    def handle(
        self,
        peer: bytes,
        message: Message,
        payloads: Sequence[object] = (),
        now: float = 0.0,
    ) -> list[Send]:
        """Receive one message with its payload frames; return what to send."""
        self.state.now = now
        if peer in self.state.workers:
            self.state.workers[peer].heard_at = now
        content = DecodedSamples(message, payloads) if isinstance(message, DecodeDone) else message
        if not self._apply(peer, type(message).__name__, content):
            self.state.dropped += 1
            if isinstance(message, DecodeDone):
                self.workers.refuse_payloads(peer, message)
        return self._settle()

    def unreachable(self, peer: bytes, undelivered: Message, now: float) -> list[Send]:
        """Handle that a message could not be delivered: the peer is gone."""
        self.state.now = now
        if self.state.run is not None and isinstance(undelivered, Lease):
            self.state.run.lost_leases.return_undelivered(undelivered.lease)
        self._apply(peer, Event.UNREACHABLE)
        return self._settle()

    def tick(self, now: float) -> list[Send]:
        """Handle the passing of time: heartbeat timeouts, expired leases, keepalives."""
        self.state.now = now
        self._check_heartbeats()
        self._expire_leases()
        self._admit_postponed()
        self._rank_checks.check()
        self._keep_ranks_alive()
        if now >= self._looked_at + LOOK_AGAIN_S:
            self._looked_at = now
            self.state.requests.look_at_all()
        self._help_slow_workers()
        sent = self._settle(may_wait=False)
        self._ticked_at, self._deadline, self._has_changed = now, self._find_deadline(), False
        return sent

    def stop(self) -> list[Send]:
        """Return what to send before the balancer ends: ranks wait for the one that follows."""
        sent = self._settle()
        for peer in sorted(self.state.ranks):
            self.state.send(peer, BalancerStops())
        for peer in sorted(self.state.leaving):
            self.state.send(peer, Bye())
        return [*sent, *self.state.take_outbox()]

    def next_deadline(self) -> float:
        """Return the latest time at which `tick` must be called."""
        if self._has_changed:
            return min(self._deadline, self._ticked_at + TICK_S)
        return self._deadline

    def _find_deadline(self) -> float:
        """Return when the passing of time alone has a consequence."""
        state = self.state
        heard_at = min((w.heard_at for w in state.workers.values()), default=math.inf)
        keepalives = (
            r.sent_at + (PROBE_SHARER_S if state.sharers.may_share(r) else KEEPALIVE_S)
            for r in state.ranks.values()
        )
        lease = state.run.lost_leases.next_deadline() if state.run else math.inf
        is_watched = state.apart_since < math.inf or state.sharers.lost
        apart = state.now + 1.0 if is_watched else math.inf
        keepalive = min(keepalives, default=math.inf)
        timeout = heard_at + self._heartbeat_timeout_s()
        return min(timeout, keepalive, lease, apart) + MARGIN_S

    # --- the table

    def _apply(self, peer: bytes, event: str, content: object = None) -> bool:
        """Apply an event to a peer, by the table; return False if there is no row for it."""
        states = self.state.peer_states
        if event in _LAST_WORDS:
            self.state.postponed.pop(peer, None)
        before = states.get(peer, ABSENT)
        row = COORDINATOR.get((before, event))
        if row is None:
            return False
        outcome = self.handlers[row.action](peer, content) or Outcome.DONE
        if outcome is Outcome.OUTDATED:
            self.state.dropped += 1
        after = row.after[outcome]
        if after == ABSENT:
            states.pop(peer, None)
        else:
            states[peer] = after
        if after != before:
            self.state.update_worker(peer)
        return True

    # --- time

    def _heartbeat_timeout_s(self) -> float:
        """Return how long a worker may be silent: never longer than a lease lasts."""
        timeout_s, run = self.state.heartbeat_timeout_s, self.state.run
        return min(timeout_s, run.job.lease_s) if run else timeout_s

    def _keep_ranks_alive(self) -> None:
        """Send ranks something now and then: see KEEPALIVE_S."""
        state = self.state
        for rank in state.ranks.values():
            silent_s = state.now - rank.sent_at
            if silent_s > KEEPALIVE_S or (silent_s > PROBE_SHARER_S and state.sharers.others(rank)):
                send_pong(self.runs, rank.peer)

    def _check_heartbeats(self) -> None:
        """Lose workers whose heartbeat timed out; send the others something now and then."""
        for worker in list(self.state.workers.values()):
            silent_s, unsent_s = self.state.now - worker.heard_at, self.state.now - worker.sent_at
            if silent_s > self._heartbeat_timeout_s():
                self._apply(worker.peer, Event.HEARTBEAT_TIMEOUT)
            elif unsent_s > (PROBE_WORKER_S if silent_s > DOUBT_WORKER_S else KEEPALIVE_S):
                # A worker that has not opened the source may never have had the job.
                if self.state.state_of(worker.peer) == W_PREPARING:
                    self.workers.send_job(worker.peer)
                else:
                    self.state.send(worker.peer, Revoke(NO_LEASE))

    def _expire_leases(self) -> None:
        """Revoke expired leases; their workers get no more work before they answer."""
        state = self.state
        if state.run is None:
            return
        for lease in state.run.lost_leases.return_expired(state.now, self.workers.work_in_progress):
            state.diagnostics.record_expired(state.now)
            state.send(lease.worker, Revoke(lease.number))
            self.workers.doubt(lease.worker)

    def _admit_postponed(self) -> None:
        """Admit the ranks of another job: those of the current one had time to show up."""
        for peer, hello in list(self.state.postponed.items()):
            self._apply(peer, Event.POSTPONED_HELLO, hello)
        self.state.postponed.clear()

    # --- settling

    def _settle(self, may_wait: bool = True) -> list[Send]:
        """Do what has become possible; return what to send: see CoordinatorState.take_outbox."""
        self._has_changed = True
        self.runs.guard(lambda run: run.feed.plan_ahead(STEPS_AHEAD))
        self._answer_requests()
        self._revoke_useless_leases()
        self._grant_leases()
        self._say_goodbye()
        return self.state.take_outbox(may_wait)

    def _answer_requests(self) -> None:
        """Send what was asked for: a microbatch that is ready, the end of the epoch, a failure."""
        state = self.state
        run = state.run
        if run is None:
            return
        for place in run.delivery.planned.take_changed():
            state.requests.look_at(*place)
        if run.take_end():
            state.requests.look_at_all()
        # Sending a microbatch may fail the run, and then all requests fail.
        while requests := state.requests.take(run.number):
            for request, peer in requests:
                end = run.epoch_end(request.step)
                if state.failure is not None:
                    self.runs.finish(peer, state.failure)
                elif end is not None:
                    self.runs.finish(peer, EpochEnd(request.run, end, run.feed.left_out))
                elif not self._send_batch(run, request, peer):
                    continue
                state.requests.remove(request, peer)

    def _send_batch(self, run: EpochRun, request: RequestBatch, peer: bytes) -> bool:
        """Send a microbatch if it is ready; one that cannot be used ends the run."""
        rank, step, microbatch = request.rank, request.step, request.microbatch
        sharers, process = self.state.sharers, self.state.ranks[peer]
        if sharers.why_held_back(process, rank, step) is not None:
            return False
        batch = run.delivery.ready(rank, step, microbatch, self.state.now, peer)
        if batch is None:
            return False
        if batch.fatal is not None:
            sample = batch.fatal
            failure = sample.failure or SampleFailure("")
            place = f" of {failure.source}" if failure.source else ""
            self.runs.fail(f"sample {sample.key!r}{place}: {failure.reason}")
        else:
            self.state.send(peer, batch.message, batch.payloads)
            process.was_served = True
            is_alone = sharers.is_alone(rank)
            waiting = () if is_alone else sharers.waiting_for(rank, (step, microbatch), run.number)
            run.delivery.mark_sent(rank, step, microbatch, self.state.now, peer, waiting)
        return True

    def _revoke_useless_leases(self) -> None:
        """Revoke leases whose samples others have done."""
        state = self.state
        for lease in state.run.leases.take_useless() if state.run is not None else []:
            state.send(lease.worker, Revoke(lease.number))
            # It may hang: without this it would get samples again and again, and all wait for them.
            if lease.shown_at <= state.now - HELP_AFTER_S:
                self.workers.doubt(lease.worker)

    def _grant_leases(self) -> None:
        """Grant one lease after another to the worker with the fewest, until there is no work."""
        state, run = self.state, self.state.run
        if run is None or state.failure is not None:
            return
        # Whether there is work is asked before for whom: after most messages there is none.
        while (
            peer := state.pool.next_free(run.leases.count_or_full)
        ) is not None and run.granter.has_work():
            home = state.pool.home(peer, run.job.ranks)
            stats = state.workers[peer].stats
            each_ms = stats.probe_ms_each, stats.decode_ms_each
            workers = state.pool.assignable
            lease = run.granter.grant(peer, state.now, workers, *each_ms, home)
            if lease is None:
                return
            state.send(peer, lease)

    def _help_slow_workers(self) -> None:
        """Grant workers that have nothing to do what others are slow with."""
        state, run = self.state, self.state.run
        if run is None or state.failure is not None:
            return
        for peer in state.pool.idle(run.leases.count_or_full):
            lease = run.granter.grant_shared(peer, state.now)
            if lease is None:
                return
            state.send(peer, lease)

    def _say_goodbye(self) -> None:
        """Answer ranks that have left, once no other rank needs this balancer's run."""
        state = self.state
        if state.leaving and not any(map(self._needs_run, state.ranks.values())):
            for peer in sorted(state.leaving):
                state.send(peer, Bye())
            state.leaving.clear()

    def _needs_run(self, rank: RankPeer) -> bool:
        """Return whether a rank may still ask for microbatches of its run.

        One that was sent the end may have to ask again for what it has not taken: that may lie in
        the memory of workers that end with those who leave.
        """
        run = self.state.run
        if rank.started is None or not rank.finished:
            return rank.started is not None
        if run is None or run.number != rank.started.run or self.state.failure is not None:
            return False
        return min(map(rank.reached, rank.hello.ranks)) < (run.feed.step, 0)
