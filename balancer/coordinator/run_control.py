"""Start, stop and fail the current run, and find ranks that keep the others from going on.

There is at most one run (one epoch of one job) at a time. A rank that starts the next one waits
until all ranks have left the current one, or until none of it is left to be served.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from ..planning.problem.shuffle import permutation
from ..protocol.job_spec import JobSpec
from ..protocol.messages import EpochEnd, Pong, RunFailed, StartRun, UnknownPeer
from ..protocol.payload_messages import Revoke
from .delivery.step import RankProgress
from .delivery.tracker import BEYOND
from .peers.admission import DataFacts, why_apart
from .peers.records import RankPeer
from .run.epoch import EpochRun
from .run.planning_feed import plans_whole_epoch
from .state import CoordinatorState
from .status_report import MAX_NAME, held_back_reason, label_reason, waiting_reason

T = TypeVar("T")
# Ranks that start at different positions may belong to two launches, the former not known to have
# ended: of a host that is gone the kernel takes 30 s to say so.
APART_S = 35.0
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


class RunControl(CoordinatorState):
    """Decides which run is the current one; the run itself is `self.run`."""

    # --- starting

    def start_next(self) -> None:
        """Start the next run if its time has come: see `_next_start`."""
        if self.job is None or not self.is_ready or self.why_ranks_apart():
            return
        starts = [rank.started for rank in self.ranks.values() if rank.started]
        # One was a run behind, or the trainer was restarted and counts its runs from 0 again.
        if self.run is not None and starts and min(s.run for s in starts) < self.run.number:
            self.stop_run()
        start = self._next_start(self.job, starts)
        if start is None:
            return
        self.stop_run()
        # Ordinals that ranks report to be holes where they resume.
        holes = {each for other in starts if other.run == start.run for each in other.holes}
        try:
            self.run = self._make(self.job, start, holes)
        except ValueError as error:
            self.fail(str(error))
            return
        self.requests.look_at_all()
        self.pool.note_all()
        for rank in self.ranks.values():
            self.apply_progress(rank)

    def _make(self, job: JobSpec, start: StartRun, holes: Collection[int]) -> EpochRun:
        """Return a run; holes: ordinals of samples that ranks report to be unusable.

        Raises ValueError if it cannot be started.
        """
        count, fingerprint = self.facts.count, self.facts.fingerprint
        try:
            if job.mixture:
                from ..planning.mixing.recipe import order_of_rows  # here: other data need none

                order = order_of_rows(job.mixture, count, job.plan.seed, start.epoch, job.shuffle)
            else:
                order = permutation(count, job.plan.seed, start.epoch, shuffle=job.shuffle)
        except MemoryError as error:
            reason = f"the balancer has no memory for an order of {count}: {error}"
            raise ValueError(reason) from error
        first, samples = start.start.start, len(order)
        if not 0 <= first <= samples:
            raise ValueError(
                f"the ledger is at sample {first}, but the data set has {samples}: the ledger "
                "belongs to another data set; resume with its own"
            )
        try:
            pipeline = start.costs or job.plan.pipeline
            planner = self.plan_with(replace(job.plan, pipeline=pipeline))
        except ValueError as error:
            raise ValueError(f"the costs that a pipeline has measured: {error}") from error
        # Holes are reported by their names, which are not kept.
        self.costs.note_failed(order[[each for each in holes if each < samples]].tolist())
        # What this machine's own workers send is not doubted: they are this trainer's processes.
        check = self.check_layout if job.source else None
        whole, believed = plans_whole_epoch(planner), check is None
        known = self.costs.known_to(job, count, fingerprint, whole, believed)
        run = EpochRun(start, job, order, planner, known, self.pool.note, self.kept)
        run.check_layout = check
        run.leases.last = self.last_lease
        return run

    def _next_start(self, job: JobSpec, starts: Iterable[StartRun]) -> StartRun | None:
        """Return the start of the next run, None if it is not its time.

        A run that goes on is left only when every rank has started a later one. The next run is the
        earliest that was asked for, from the position of the rank that is farthest behind.
        """
        run = self.run
        current = run.number if run is not None else -1
        later = [start for start in starts if start.run > current]
        if not later or (run is not None and len(self._ranks_beyond(current)) < job.plan.ranks):
            return None
        return min(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))

    def _ranks_beyond(self, run: int) -> set[int]:
        """Return the ranks all of whose processes have started a later run than this one."""
        beyond = {
            number for rank in self.ranks.values() if rank.run > run for number in rank.hello.ranks
        }
        return {number for number in beyond if not self.sharers.of_run(number, run)}

    def why_ranks_apart(self) -> str:
        """Return why ranks that have started the same run cannot run together, "" if they can.

        Ranks in different runs are not compared: the last message of a process that was killed may
        arrive after the first of its successor.
        """
        if len(counts := self.samples_in_use()) > 1:
            return (
                f"the ranks go on in data of {' and '.join(map(str, sorted(counts)))} samples: "
                "resume all of them from one ledger"
            )
        runs = sorted({rank.run for rank in self.ranks.values()})
        of_runs = ([rank for rank in self.ranks.values() if rank.run == run] for run in runs)
        return next(filter(None, map(why_apart, of_runs)), "")

    def apply_progress(self, rank: RankPeer) -> None:
        """Apply what a rank has taken: all of a run before its own, part of its own."""
        if self.run is None or rank.run < self.run.number:
            return
        if rank.started is not None and rank.run == self.run.number:
            self.run.delivery.learn_holes(rank.started.known, rank.started.holes)
        self.forget_taken(rank.hello.ranks)

    def forget_taken(self, ranks: tuple[int, ...]) -> None:
        """Forget what all processes of these ranks have taken of the run, or do not need."""
        if self.run is not None:
            for number in ranks:
                needed = self.sharers.needed(number, self.run.number)
                self.run.delivery.skip_to((number,), *needed)

    # --- stopping and failing

    def stop_run(self) -> None:
        """Forget the current run, and revoke its leases."""
        if self.run is not None:
            self.last_lease = self.run.leases.last
            for lease in self.run.leases.take_all():
                self.send(lease.worker, Revoke(lease.number))
            self.run.delivery.budget.forget_all()
        for rank in self.ranks.values():
            rank.taken = RankProgress()
        self.run, self.failure = None, None

    def forget_data(self) -> None:
        """Let the next worker say what the data are: nothing of what was said is in use."""
        self.facts = DataFacts()
        self.costs.forget()
        if self.failure is None:
            self.stop_run()

    def guard(self, action: Callable[[EpochRun], T]) -> T | None:
        """Do something with the current run that may find it impossible: then it fails."""
        if self.run is None or self.failure is not None:
            return None
        try:
            return action(self.run)
        except ValueError as error:
            self.fail(str(error))
        except MemoryError as error:
            self.fail(f"the balancer has not enough memory: {error}")
        return None

    def fail(self, reason: str) -> None:
        """Fail the run, and report it to all ranks."""
        self.failure = RunFailed(reason)
        self.requests.look_at_all()
        for rank in self.ranks.values():
            self.finish(rank.peer, self.failure)

    def finish(self, peer: bytes, last: RunFailed | EpochEnd) -> None:
        """Send a rank the end of its run."""
        self.send(peer, last)
        if peer in self.ranks:
            self.ranks[peer].finished = True

    # --- ranks that are waited for

    def check_ranks(self) -> None:
        """Make all checks at the coordinator's time."""
        self._check_apart()
        missing = self.missing_ranks()
        if self._has_lasted("missing ranks", missing, MISSING_S):
            self.fail(
                f"ranks {missing} have gone, and the others have waited {MISSING_S:.0f} s for them "
                "to start the next epoch: let all ranks run the same epochs, or restart all ranks"
            )
        # All workers that have come were refused.
        is_refused = not self.workers and self.refused and self.ranks
        if self._has_lasted("all refused", is_refused, MISSING_S):
            self.fail(f"{self.refused}; no other has come for {MISSING_S:.0f} s")
        self._check_held_up()
        # Label tokens were counted for a former balancer, and who did so stays away. That rank may
        # have had the step's total, of which it tells nobody while it trains: where it then waits
        # for the gradients of a rank that has no total, neither would ever go on.
        lost = self._lost_counts()
        if self._has_lasted("lost counts", lost, COUNTS_LOST_S) and lost is not None:
            self.fail(
                f"the balancer was restarted while it added up the label tokens of step {lost[0]}, "
                f"and ranks {lost[1]} have not come back for {COUNTS_LOST_S:.0f} s to send theirs "
                "again: restart all ranks from the last ledger"
            )
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

    def _check_held_up(self) -> None:
        """Stop waiting for absent ranks once a present one has waited for an unplanned step.

        No step is planned while absent ranks have not taken those before. They may have had the
        rest of the epoch from a former balancer, or have left before this run started again. If
        one does come back, the run starts again.
        """
        run = self.run
        if run is None or not (absent := self.sharers.absent(run.job.plan.ranks)):
            return
        nearest = self.requests.nearest_of_peers(run.number).values()
        unplanned = (since for request, since in nearest if request.step >= run.feed.step)
        if any(self.now - since > HELD_UP_S for since in unplanned):
            run.delivery.skip_to(absent, BEYOND, 0)  # they take nothing more

    def _lost_counts(self) -> tuple[int, tuple[int, ...]] | None:
        """Return the step of which a process that has come back waits for absent ranks' counts."""
        if self.job is None or not (absent := self.sharers.absent(self.job.plan.ranks)):
            return None
        for rank in self.ranks.values():
            if rank.started is None or not rank.started.has_returned:
                continue
            waits = self.labels.waits_for(rank.peer, rank.run, self.job.plan.ranks)
            if waits is not None and (gone := tuple(r for r in waits[1] if r in absent)):
                return waits[0], gone
        return None

    def _check_lost_sharers(self) -> None:
        """Fail when a process stays away whose rank others share: they would wait for it.

        One that is reachable, and merely trains, comes back when it next listens.
        """
        for peer, lost in list(self.sharers.lost.items()):
            others = self.sharers.others(lost.rank)
            if not any(each.since <= lost.since for each in others):
                # Those that are here came later: their launch has a process in its place.
                del self.sharers.lost[peer]
            elif self.now - lost.probed_at > PROBE_LOST_S:
                if lost.probed_at > lost.unreachable_at:
                    lost.since = self.now
                lost.probed_at = self.now
                self.send(peer, UnknownPeer())
            if self.now - lost.since > SHARER_LOST_S and self.failure is None:
                name, number = lost.rank.hello.name, lost.rank.hello.ranks[0]
                self.fail(
                    f"{name or peer.decode(errors='replace'):.{MAX_NAME}}, which shares "
                    f"data-parallel rank {number} with others, has ended or cannot be reached: "
                    "restart all ranks from the last ledger"
                )
