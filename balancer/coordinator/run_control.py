"""Start, stop and fail the current run.

There is at most one run (one epoch of one job) at a time. A rank that starts the next one waits
until all ranks have left the current one, or until none of it is left to be served.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from ..planning.problem.shuffle import permutation
from ..protocol.job_spec import JobSpec
from ..protocol.messages import EpochEnd, RunFailed, StartRun
from ..protocol.payload_messages import Revoke
from .delivery.step import RankProgress
from .peers.admission import DataFacts, why_apart
from .peers.records import RankPeer
from .run.epoch import EpochRun
from .run.planning_feed import plans_whole_epoch
from .state import CoordinatorState

T = TypeVar("T")


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
        first = start.start.start
        if not 0 <= first <= count:
            raise ValueError(
                f"the ledger is at sample {first}, but the data set has {count}: the ledger "
                "belongs to another data set; resume with its own",
            )
        try:
            order = permutation(count, job.plan.seed, start.epoch, shuffle=job.shuffle)
        except MemoryError as error:
            reason = f"the balancer has no memory for an order of {count}: {error}"
            raise ValueError(reason) from error
        try:
            pipeline = start.costs or job.plan.pipeline
            planner = self.plan_with(replace(job.plan, pipeline=pipeline))
        except ValueError as error:
            raise ValueError(f"the costs that a pipeline has measured: {error}") from error
        # Holes are reported by their names, which are not kept.
        self.costs.note_failed(order[[each for each in holes if each < count]].tolist())
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
        if not later or (run is not None and len(self._ranks_beyond(current)) < job.ranks):
            return None
        return min(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))

    def _ranks_beyond(self, run: int) -> set[int]:
        """Return the ranks all of whose processes have started a later run than this one."""
        beyond = {
            number
            for rank in self.ranks.values()
            if rank.started is not None and rank.started.run > run
            for number in rank.hello.ranks
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
        ranks = [(rank, rank.started) for rank in self.ranks.values() if rank.started]
        runs = sorted({start.run for _, start in ranks})
        reasons = (why_apart([(r, s) for r, s in ranks if s.run == run]) for run in runs)
        return next(filter(None, reasons), "")

    def apply_progress(self, rank: RankPeer) -> None:
        """Apply what a rank has taken: all of a run before its own, part of its own."""
        run, start = self.run, rank.started
        if run is None or start is None or start.run < run.number:
            return
        if start.run == run.number:
            run.delivery.learn_holes(start.known, start.holes)
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
