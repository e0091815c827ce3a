"""Handlers of what ranks send: hello, the start of a run, requests, acknowledgements, goodbye.

Each is named in a row of `protocol/transitions.py` and returns the outcome that the row maps to the
rank's next state, or None where there is only one.

A trainer is restarted as a whole, but its processes come one by one, and the end of the processes
before may be noticed late. So a rank that comes while others play its ranks waits until it is known
whether these are here; ranks at other positions wait until it is known which of them are.
"""

import math

from msgspec import structs

from ..protocol.job_spec import from_json, to_json
from ..protocol.messages import (
    LabelCount,
    Notice,
    PeerRejected,
    Ping,
    RankBye,
    RankHello,
    StartRun,
    UnknownPeer,
)
from ..protocol.parts import Ready
from ..protocol.payload_messages import Ack, PullFailed, RequestBatch, StopServing
from ..protocol.status_messages import GetStatus, bounded
from ..protocol.transitions import W_READY, Event, Outcome
from .delivery.step import BEGINNING, RankProgress
from .peers.admission import (
    DataFacts,
    why_not_gone_on_in,
    why_rank_refused,
    why_seat_taken,
)
from .peers.records import RankPeer
from .peers.sharers import LostSharer
from .run.epoch import EpochRun
from .run_control import RunControl
from .state import MAX_REASON, MAX_RUBBISH
from .status_report import make_status_report

# A rank whose seat a newcomer wants is here if it sends something later than this after that (what
# it sent before may come late), or the server confirms it. If nothing shows it, its connection
# decides: the kernel ends it when the other side has answered nothing for 30 s.
LATE_S, SILENT_S = 1.0, 35.0
# It is sent something this often meanwhile; more newcomers than so many are refused at once.
PROBE_SEAT_S, MOST_POSTPONED = 0.5, 64


class RankHandlers(RunControl):
    """The actions of the table that concern ranks."""

    # --- joining

    def greet_rank(self, peer: bytes, hello: RankHello) -> Outcome:
        """Admit a rank; if others are in its way, find out first if they are here."""
        is_full = len(self.postponed) >= MOST_POSTPONED and peer not in self.postponed
        if (others := self._in_way(hello)) and not is_full:
            # Those that cannot be reached are lost before the next tick, which admits this one.
            for rank in others:
                self.send_pong(rank.peer)
            _, since = self.postponed.get(peer, (hello, self.now))
            self.postponed[peer] = hello, since
            return Outcome.POSTPONED
        self.postponed.pop(peer, None)
        return self.admit_rank(peer, hello)

    def _holders(self, hello: RankHello) -> list[RankPeer]:
        """Return the processes that play ranks of a newcomer's, with its number among sharers."""
        return [rank for rank in self.ranks.values() if rank.has_seat_of(hello)]

    def _in_way(self, hello: RankHello) -> list[RankPeer]:
        """Return the processes that a newcomer cannot be beside: all, if it brings another job."""
        if self.job is not None and not self.job_is_fixed and hello.job != to_json(self.job):
            return list(self.ranks.values())
        return self._holders(hello)

    def in_question(self) -> set[bytes]:
        """Return the ranks that are in a newcomer's way, and may be gone: see `confirm`."""
        found = (self._in_way(hello) for hello, _ in self.postponed.values())
        return {rank.peer for others in found for rank in others}

    def confirm(self, peer: bytes, now: float) -> None:
        """Record that a rank is here: the other side of its connection has all that was sent."""
        if (rank := self.ranks.get(peer)) is not None:
            rank.heard_at = now

    def can_decide(self, hello: RankHello, since: float) -> bool:
        """Return whether those in a newcomer's way are gone, or one has shown that it is here."""
        others = self._in_way(hello)
        for rank in others:
            if self.now - rank.sent_at > PROBE_SEAT_S:
                self.send_pong(rank.peer)
        heard_at = max((rank.heard_at for rank in others), default=math.inf)
        return heard_at > since + LATE_S or self.now > since + SILENT_S

    def admit_rank(self, peer: bytes, hello: RankHello) -> Outcome:
        """Admit a rank to the job; the first one may bring it."""
        reason = why_rank_refused(self.job, hello, self.plan_with, self.ranks.values())
        if not reason and (holders := self._holders(hello)):
            reason = why_seat_taken(holders[0], hello)
            for rank in holders:
                self.send(rank.peer, Notice(reason))
        if reason:
            self.send(peer, PeerRejected(reason))
            return Outcome.REFUSED
        now = self.now
        self.ranks[peer] = RankPeer(peer, hello, sent_at=now, heard_at=now, since=now)
        self.sharers.add(self.ranks[peer])
        if self.job is None:
            self.job = from_json(hello.job)
            self.last_welcome += 1
            for worker in list(self.workers.values()):
                if worker.serves is not None:
                    worker.why_inline = ""  # it was out of reach of a former job's ranks
            for each in list(self.workers):
                self.apply(each, Event.JOB_STARTED)
        self._send_ready(peer)
        return Outcome.ADMITTED

    def check_rank(self, peer: bytes, hello: RankHello) -> Outcome:
        """Answer a repeated hello; a process cannot change its ranks or its job."""
        if self.ranks[peer].hello == hello:
            self._send_ready(peer)
            return Outcome.REPEATED
        reason = "this rank is registered with another hello: restart this trainer process"
        self.send(peer, PeerRejected(reason))
        self.lose_rank(peer)
        return Outcome.REFUSED

    def _send_ready(self, peer: bytes) -> None:
        if self.is_ready:
            self.send(peer, Ready(self.facts.count, self.facts.fingerprint))
        if self.failure is not None:
            self.send(peer, self.failure)

    # --- running

    def start_run(self, peer: bytes, start: StartRun) -> None:
        """Record that a rank has started a run; start or restart that run if its time has come."""
        rank = self.ranks[peer]
        if rank.started is not None and not start.is_after(rank.started):
            return
        if rank.run != start.run:
            rank.was_served = False
        rank.started, rank.taken_until, rank.taken = start, BEGINNING, RankProgress()
        rank.finished = False
        self._refuse_other_data()
        self.requests.remove_before(peer, start.run)
        if self.why_ranks_apart():
            self.stop_run()
            self.apart_since = min(self.apart_since, self.now)
        elif self.run is not None and self.run.starts_after(start, rank.hello.ranks):
            # This rank needs microbatches that the run has forgotten, or never had. One that comes
            # late to a shared rank gets here too: the run is measured and planned again from its
            # start, and what was decoded ahead is decoded again. That is time only, once for each
            # that comes after a step was forgotten: the same plan follows from the same costs, and
            # what the others have taken, and all known holes, are kept.
            self._keep_progress(self.run, rank)
            self.stop_run()
        self.apply_progress(rank)
        self.requests.look_at_peers(each.peer for each in self.sharers.others(rank))
        self.start_next()

    def _refuse_other_data(self) -> None:
        """Send workers away in whose data no rank goes on, before any has had a part of them."""
        reason = why_not_gone_on_in(self.samples_in_use(), self.facts.count)
        if not reason or not self.is_ready:
            return
        for worker in list(self.workers.values()):
            if self.state_of(worker.peer) == W_READY:
                self.refuse(worker, reason)
                self.apply(worker.peer, Event.ENDED)
        self.forget_data()

    def _keep_progress(self, run: EpochRun, behind: RankPeer) -> None:
        """Keep what the other ranks have taken of a run that starts again: no need to decode it."""
        steps, holes = run.delivery.known_holes()
        for rank in self.ranks.values():
            if rank is not behind and rank.started is not None and rank.run == run.number:
                rank.started = structs.replace(rank.started, known=steps, holes=holes)
                rank.taken_until = min(map(rank.reached, rank.hello.ranks))

    def record_request(self, peer: bytes, request: RequestBatch) -> None:
        """Record which microbatch a rank waits for.

        If it is in a later run than the one that we know it to be in, its StartRun was lost.
        """
        rank = self.ranks[peer]
        known = request.run if rank.started is None else rank.started.run
        # One of a run that the rank has left was on its way meanwhile.
        if request.rank not in rank.hello.ranks or request.run < known:
            return
        run = self.run
        if request.lost and run is not None and run.number == request.run:
            run.delivery.lose_sent(request.rank, request.step, request.microbatch, peer)
        self.requests.add(peer, request, self.now)
        if request.run > known:
            self.send(peer, UnknownPeer())

    def identify_rank(self, peer: bytes, _: RequestBatch | LabelCount) -> None:
        """Ask an unknown rank to introduce itself again."""
        self.send(peer, UnknownPeer())

    def acknowledge(self, peer: bytes, ack: Ack) -> None:
        """Forget a microbatch that a rank has taken, once all have who share the rank."""
        run, rank = self.run, self.ranks[peer]
        rank.waited_ms = bounded(ack.waited_ms)
        is_own = ack.rank in rank.hello.ranks
        if not is_own or run is None or run.number != ack.run:
            return
        rank.taken.move_on(ack.rank, run.position_after(ack.rank, ack.step, ack.microbatch))
        others = self.sharers.others(rank)
        if others:
            self.forget_taken((ack.rank,))
            self.requests.look_at_peers(each.peer for each in others)
        else:
            run.delivery.acknowledge(ack.rank, ack.step, ack.microbatch)

    def add_labels(self, peer: bytes, message: LabelCount) -> None:
        """Add up label tokens that ranks have counted; answer all who have once all ranks have."""
        rank = self.ranks[peer]
        if not (self.job and self.job.counts_batches and message.rank in rank.hello.ranks):
            return
        other = self.labels.add(peer, message)
        if other is not None:
            self.fail(
                f"processes that share rank {message.rank} count {message.tokens} and {other} "
                f"label tokens in its batches of step {message.step}: let collate_fn make the same "
                "batch of the same samples"
            )
            return
        found = self.labels.settle(peer, message, self.job.plan.ranks, self.ranks)
        if found is not None:
            for each in found[1]:
                self.send(each, found[0])

    def answer_ping(self, peer: bytes, ping: Ping) -> None:
        """Answer a rank that waits."""
        rank = self.ranks.get(peer)
        if rank is not None:
            rank.pinged_at = self.now
            rank.clock.note(ping.clock_us, self.diagnostics.clock_us(self.now))
        self.send_pong(peer, ping.number)

    def report_status(self, peer: bytes, question: GetStatus) -> None:
        """Send the status report that `counterpoise doctor` shows."""
        self.send(peer, make_status_report(self, question.number))

    # --- pulls

    def judge_pull(self, peer: bytes, failed: PullFailed) -> None:
        """Blame a worker whose payloads are rubbish; have one that is out of reach send inline."""
        serving = (each for each in self.workers.values() if each.serves is not None)
        worker = next((w for w in serving if w.serves and w.serves.token == failed.token), None)
        if worker is None:
            return  # it is gone, or has said hello again since
        if failed.is_rubbish:
            worker.rubbish += 1
            if worker.rubbish >= MAX_RUBBISH:
                self.apply(worker.peer, Event.TURNED_AWAY, failed.reason[:MAX_REASON])
        elif worker.why_inline:
            # It still serves: it may not have heard it.
            self.send(worker.peer, StopServing(worker.why_inline))
        else:
            name = self.ranks[peer].hello.name or f"rank {self.ranks[peer].hello.ranks}"
            worker.why_inline = reason = f"{name} cannot pull: {failed.reason}"[:MAX_REASON]
            self.send(worker.peer, StopServing(reason))
            if self.job is not None and self.job.transport == "direct":
                self.fail(
                    f"worker {worker.hello.name}: {reason}; let ranks reach its address "
                    '(counterpoise worker --serve), or leave transport="direct"'
                )
            elif self.run is not None:
                # What only it has, and no rank was sent, is decoded again.
                self.run.delivery.decoding.drop_those_of(worker.peer)

    # --- leaving

    def release_rank(self, peer: bytes, _: RankBye) -> None:
        """Forget a rank that says goodbye, and answer it when no other rank needs this run."""
        self.forget_taken(self._forget(peer).hello.ranks)
        self.leaving.add(peer)
        self._continue_without()

    def lose_rank(self, peer: bytes, _: object = None) -> None:
        """Forget a rank that cannot be reached.

        If others share its rank they wait for it to come back, though not for long.
        """
        rank = self._forget(peer)
        if rank.started is not None and self.sharers.others(rank):
            self.sharers.lost[peer] = LostSharer(rank, self.now, unreachable_at=self.now)
        self._continue_without()

    def _forget(self, peer: bytes) -> RankPeer:
        rank = self.ranks.pop(peer)
        self.requests.look_at_peers(each.peer for each in self.sharers.others(rank))
        self.sharers.remove(rank)
        self.requests.remove_before(peer, math.inf)
        self.labels.remove(peer)
        return rank

    def confirm_loss(self, peer: bytes, _: object = None) -> None:
        """Record that a process that was lost still cannot be reached."""
        lost = self.sharers.lost.get(peer)
        if lost is not None:
            lost.unreachable_at = self.now

    def _continue_without(self) -> None:
        """Start the next run if others waited for the rank that left; with the last, end the job.

        A job that came with the ranks is forgotten with them.
        """
        if self.ranks:
            self.start_next()
            return
        self.stop_run()
        if not self.job_is_fixed:
            for worker in list(self.workers):
                self.apply(worker, Event.JOB_ENDED)
            self.job, self.facts, self.refused = None, DataFacts(), ""
            self.costs.forget()  # workers open the source again for the next
