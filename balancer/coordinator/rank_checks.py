"""Checks of the ranks on every tick: apart from each other, gone, or holding others up.

What a rank waits for is in the answer to its ping, which is also sent unasked now and then.
"""

import math

from ..protocol.messages import Pong, UnknownPeer
from .delivery.tracker import BEYOND
from .peers.records import RankPeer
from .run.epoch import EpochRun
from .run.granting import reported_sample
from .run_control import RunControl
from .state import CoordinatorState

# Characters of a process' name that are quoted.
MAX_NAME = 200
# A worker without a result for this long is named to those who wait.
SLOW_S = 5.0
# Ranks that are named one by one.
MAX_RANKS = 8


def held_back_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which process that shares its rank a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.run is None:
        return ""
    nearest = state.requests.nearest_of(peer, state.run.number)
    slowest = state.sharers.why_held_back(rank, nearest.rank, nearest.step) if nearest else None
    if nearest is None or slowest is None:
        return ""
    name = slowest.hello.name or slowest.peer.decode(errors="replace")
    where = "cannot be reached" if slowest.peer in state.sharers.lost else "has not come further"
    return (
        f"{name:.{MAX_NAME}}, which shares this rank and {where} than step "
        f"{slowest.reached(nearest.rank)[0]}"
    )


def label_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which ranks' label tokens a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.job is None:
        return ""
    found = state.labels.waits_for(peer, rank.started.run, state.job.ranks)
    if found is None:
        return ""
    step, missing = found
    names = {r: each.hello.name for each in state.ranks.values() for r in each.hello.ranks}
    of = ", ".join(f"{r} ({names.get(r) or 'not here':.{MAX_NAME}})" for r in missing[:MAX_RANKS])
    return f"the label tokens of step {step} from rank {of}"


def waiting_reason(state: CoordinatorState) -> str:
    """Return in a few words what the ranks wait for, and who cannot do it."""
    refused = f"; {state.refused}" if state.refused and not state.has_ready_worker else ""
    return _waits_for(state) + refused


def _waits_for(state: CoordinatorState) -> str:
    if not state.workers:
        return "a worker to connect"
    if missing := state.missing_ranks():
        return f"ranks {missing}, which have gone"
    if state.job is None:
        return "a trainer to bring a job"
    if state.run is not None:
        return state.run.waiting_reason() + _slow_sample(state, state.run)
    return "ranks to begin" if state.is_ready else "a worker to open the data"


def _slow_sample(state: CoordinatorState, run: EpochRun) -> str:
    """Return which worker has shown no result for longest, and of which sample; "" if not long."""
    lease = min(run.leases, key=lambda each: each.shown_at, default=None)
    worker = None if lease is None else state.workers.get(lease.worker)
    if lease is None or worker is None or state.now - lease.shown_at < SLOW_S:
        return ""
    sample = reported_sample([lease], worker.in_progress) or next(iter(lease.samples.values()))
    what = repr(sample.key) if sample.key else f"number {sample.index} of the source"
    silent_s = state.now - lease.shown_at
    return (
        f"; worker {worker.hello.name:.{MAX_NAME}} has shown no result for {silent_s:.0f} s, and "
        f"works on sample {what:.{MAX_NAME}}"
    )


# Ranks that start at different positions may belong to two launches, the former not known to have
# ended: they have this long to sort themselves out.
APART_S = 5.0
# Absent ranks hold up the others for this long at most: they may have had all of their epoch.
HELD_UP_S = 5.0
# A rank that has gone while others start the next epoch may come back for this long; so may a
# worker that is accepted, where others were refused.
MISSING_S = 120.0
# A rank that stays away after a restart of the balancer, and had counted what others wait for, may
# come back for this long.
COUNTS_LOST_S = 120.0
# A process that others share a rank with may be unreachable for this long.
SHARER_LOST_S = 5.0
# Ranks that are apart are sent something this often, to find those that cannot be reached.
PROBE_APART_S = 1.0
# A lost process is sent something this often, to find out if it can be reached again.
PROBE_LOST_S = 1.0


class RankChecks(RunControl):
    """Finds ranks that keep the others from going on, and tells ranks what they wait for."""

    def check_ranks(self) -> None:
        """Make all checks at the coordinator's time."""
        self._check_apart()
        self._check_missing()
        self._check_refused()
        self._check_held_up()
        self._check_lost_counts()
        self._check_lost_sharers()

    def send_pong(self, peer: bytes, number: int = 0) -> None:
        """Send a rank the reason that it waits.

        Sent without a ping it shows a rank that the balancer is here, and the server whether the
        rank can still be reached. A failure of the run is sent again, as it may have been lost.
        """
        waiting = label_reason(self, peer) or held_back_reason(self, peer) or waiting_reason(self)
        self.send(peer, Pong(waiting, number))
        if self.failure is not None and peer in self.ranks:
            self.finish(peer, self.failure)

    def _has_lasted(self, what: str, is_so: object, limit_s: float) -> bool:
        """Return whether something that would end the run was so at every check for a time."""
        if not is_so:
            self.since.pop(what, None)
            return False
        return self.now - self.since.setdefault(what, self.now) > limit_s and self.failure is None

    def _check_apart(self) -> None:
        """Fail when ranks stay at different positions."""
        reason = self.why_ranks_apart()
        if not reason:
            self.apart_since = math.inf
        elif self.now - self.apart_since > APART_S:
            if self.failure is None:
                self.fail(reason)
        else:
            for rank in self.ranks.values():
                if self.now - rank.sent_at > PROBE_APART_S:
                    self.send_pong(rank.peer)

    def _check_missing(self) -> None:
        """Fail when ranks that others wait for have gone and stay away."""
        missing = self.missing_ranks()
        if self._has_lasted("missing ranks", missing, MISSING_S):
            self.fail(
                f"ranks {missing} have gone, and the others have waited {MISSING_S:.0f} s for them "
                "to start the next epoch: let all ranks run the same epochs, or restart all ranks",
            )

    def _check_refused(self) -> None:
        """Fail when all workers that have come were refused, and no other comes."""
        is_refused = not self.workers and self.refused and self.ranks
        if self._has_lasted("all refused", is_refused, MISSING_S):
            self.fail(f"{self.refused}; no other has come for {MISSING_S:.0f} s")

    def _check_held_up(self) -> None:
        """Stop waiting for absent ranks once a present one has waited for an unplanned step.

        No step is planned while absent ranks have not taken those before. They may have had the
        rest of the epoch from a former balancer, or have left before this run started again. If
        one does come back, the run starts again.
        """
        run = self.run
        if run is None or not (absent := self.sharers.absent(run.job.ranks)):
            return
        nearest = self.requests.nearest_of_peers(run.number).values()
        unplanned = (since for request, since in nearest if request.step >= run.feed.step)
        if any(self.now - since > HELD_UP_S for since in unplanned):
            run.delivery.skip_to(absent, BEYOND, 0)  # they take nothing more

    def _check_lost_counts(self) -> None:
        """Fail when label tokens were counted for a former balancer, and who did so stays away.

        That rank may have had the step's total, of which it tells nobody while it trains: where it
        then waits for the gradients of a rank that has no total, neither would ever go on.
        """
        lost = self._lost_counts()
        if self._has_lasted("lost counts", lost, COUNTS_LOST_S) and lost is not None:
            step, ranks = lost
            self.fail(
                f"the balancer was restarted while it added up the label tokens of step {step}, "
                f"and ranks {ranks} have not come back for {COUNTS_LOST_S:.0f} s to send theirs "
                "again: restart all ranks from the last ledger",
            )

    def _lost_counts(self) -> tuple[int, tuple[int, ...]] | None:
        """Return the step of which a process that has come back waits for absent ranks' counts."""
        if self.job is None or not (absent := self.sharers.absent(self.job.ranks)):
            return None
        for rank in self.ranks.values():
            if rank.started is None or not rank.started.has_returned:
                continue
            waits = self.labels.waits_for(rank.peer, rank.started.run, self.job.ranks)
            if waits is not None and (gone := tuple(r for r in waits[1] if r in absent)):
                return waits[0], gone
        return None

    def _check_lost_sharers(self) -> None:
        """Fail when a process stays away whose rank others share: they would wait for it.

        One that is reachable, and merely trains, comes back when it next listens.
        """
        for peer, lost in list(self.sharers.lost.items()):
            others = self.sharers.others(lost.rank)
            if not any(each.launch <= lost.rank.launch for each in others):
                # Those that are here belong to a later launch, which has a process in its place.
                del self.sharers.lost[peer]
            elif self.now - lost.probed_at > PROBE_LOST_S:
                if lost.probed_at > lost.unreachable_at:
                    lost.since = self.now
                lost.probed_at = self.now
                self.send(peer, UnknownPeer())
            if self.now - lost.since > SHARER_LOST_S and self.failure is None:
                self.fail(_describe_loss(lost.rank))


def _describe_loss(lost: RankPeer) -> str:
    name = lost.hello.name or lost.peer.decode(errors="replace")
    return (
        f"{name:.{MAX_NAME}}, which shares data-parallel rank {lost.hello.ranks[0]} with others, "
        "has ended or cannot be reached: restart all ranks from the last ledger"
    )
