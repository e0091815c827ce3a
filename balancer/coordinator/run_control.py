"""Start, stop and fail the current run.

There is at most one run (one epoch of one job) at a time. A rank that starts the next one waits
until all ranks have left the current one, or until none of it is left to be served.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from ..planning.kernels.arrays import Int64
from ..planning.mixing.recipe import Recipe
from ..planning.problem.shuffle import permutation
from ..protocol.job_spec import JobSpec
from ..protocol.messages import EpochEnd, Revoke, RunFailed, StartRun
from .delivery.step import RankProgress
from .peers.admission import DataFacts, why_apart
from .peers.records import RankPeer
from .run.epoch import EpochRun
from .run.planning_feed import WindowPlanner, plans_whole_epoch
from .state import CoordinatorState


class RunControl:
    """Decides which run is the current one; the run itself is `state.run`."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state

    # --- starting

    def start_next(self) -> None:
        """Start the next run if its time has come: see `_next_start`."""
        state = self.state
        if state.job is None or not state.is_ready or self.why_apart():
            return
        self._stop_superseded()
        start = self._next_start(state.job)
        if start is None:
            return
        self.stop()
        try:
            state.run = self._make(state.job, start, self._holes_before(start.run))
        except ValueError as error:
            self.fail(str(error))
            return
        state.requests.look_at_all()
        state.pool.note_all()
        for rank in state.ranks.values():
            self.apply_progress(rank)

    def _make(self, job: JobSpec, start: StartRun, holes: Collection[int]) -> EpochRun:
        """Return a run; holes: ordinals of samples that ranks report to be unusable.

        Raises ValueError if it cannot be started.
        """
        state = self.state
        count, fingerprint = state.facts.count, state.facts.fingerprint
        try:
            order = _order(job, count, start.epoch)
        except MemoryError as error:
            reason = f"the balancer has no memory for an order of {count}: {error}"
            raise ValueError(reason) from error
        first, samples = start.start.start, len(order)
        if not 0 <= first <= samples:
            raise ValueError(
                f"the ledger is at sample {first}, but the data set has {samples}: the ledger "
                "belongs to another data set; resume with its own",
            )
        planner = self._planner(job, start)
        # Holes are reported by their names, which are not kept.
        state.costs.note_failed(order[[each for each in holes if each < samples]].tolist())
        # What this machine's own workers send is not doubted: they are this trainer's processes.
        check = state.check_layout if job.source else None
        whole, believed = plans_whole_epoch(planner), check is None
        known = state.costs.known_to(job, count, fingerprint, whole, believed)
        run = EpochRun(start, job, order, planner, known, check, state.pool.note, state.kept)
        run.leases.last = state.last_lease
        return run

    def _planner(self, job: JobSpec, start: StartRun) -> WindowPlanner:
        if not start.costs:
            return self.state.plan_with(job.plan)
        try:
            return self.state.plan_with(replace(job.plan, pipeline=start.costs))
        except ValueError as error:
            raise ValueError(f"the costs that a pipeline has measured: {error}") from error

    def _holes_before(self, run: int) -> set[int]:
        """Return the ordinals that ranks report to be holes where they resume."""
        starts = [rank.started for rank in self.state.ranks.values() if rank.started]
        return {each for start in starts if start.run == run for each in start.holes}

    def _stop_superseded(self) -> None:
        """Stop the current run if a rank is in an earlier one.

        That rank was a run behind, or the trainer was restarted and counts its runs from 0 again.
        """
        run, starts = self.state.run, self._starts()
        if run is not None and starts and min(start.run for start in starts) < run.number:
            self.stop()

    def _next_start(self, job: JobSpec) -> StartRun | None:
        """Return the start of the next run, None if it is not its time.

        A run that goes on is left only when every rank has started a later one. The next run is the
        earliest that was asked for, from the position of the rank that is farthest behind.
        """
        run = self.state.run
        current = run.number if run is not None else -1
        later = [start for start in self._starts() if start.run > current]
        if not later:
            return None
        if run is not None and len(self._ranks_beyond(current)) < job.ranks:
            return None
        return min(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))

    def _starts(self) -> list[StartRun]:
        return [rank.started for rank in self.state.ranks.values() if rank.started]

    def _ranks_beyond(self, run: int) -> set[int]:
        """Return the ranks all of whose processes have started a later run than this one."""
        beyond = {
            number
            for rank in self.state.ranks.values()
            if rank.started is not None and rank.started.run > run
            for number in rank.hello.ranks
        }
        return {number for number in beyond if not self.state.sharers.of_run(number, run)}

    def why_apart(self) -> str:
        """Return why ranks that have started the same run cannot run together, "" if they can.

        Ranks in different runs are not compared: the last message of a process that was killed may
        arrive after the first of its successor.
        """
        if len(counts := self.state.samples_in_use()) > 1:
            return (
                f"the ranks go on in data of {' and '.join(map(str, sorted(counts)))} samples: "
                "resume all of them from one ledger"
            )
        ranks = [(rank, rank.started) for rank in self.state.ranks.values() if rank.started]
        runs = sorted({start.run for _, start in ranks})
        reasons = (why_apart([(r, s) for r, s in ranks if s.run == run]) for run in runs)
        return next(filter(None, reasons), "")

    def apply_progress(self, rank: RankPeer) -> None:
        """Apply what a rank has taken: all of a run before its own, part of its own."""
        run, start = self.state.run, rank.started
        if run is None or start is None or start.run < run.number:
            return
        if start.run == run.number:
            run.delivery.learn_holes(start.known, start.holes)
        self.forget_taken(rank.hello.ranks)

    def forget_taken(self, ranks: tuple[int, ...]) -> None:
        """Forget what all processes of these ranks have taken of the run, or do not need."""
        run = self.state.run
        if run is None:
            return
        for number in ranks:
            needed = self.state.sharers.needed(number, run.number)
            run.delivery.skip_to((number,), *needed)

    # --- stopping and failing

    def stop(self) -> None:
        """Forget the current run, and revoke its leases."""
        state = self.state
        if state.run is not None:
            state.last_lease = state.run.leases.last
            for lease in state.run.leases.take_all():
                state.send(lease.worker, Revoke(lease.number))
            state.run.delivery.budget.forget_all()
        for rank in state.ranks.values():
            rank.taken = RankProgress()
        state.run, state.failure = None, None

    def forget_data(self) -> None:
        """Let the next worker say what the data are: nothing of what was said is in use."""
        self.state.facts = DataFacts()
        self.state.costs.forget()
        if self.state.failure is None:
            self.stop()

    def guard(self, action: Callable[[EpochRun], None]) -> None:
        """Do something with the current run that may find it impossible: then it fails."""
        run = self.state.run
        if run is None or self.state.failure is not None:
            return
        try:
            action(run)
        except ValueError as error:
            self.fail(str(error))
        except MemoryError as error:
            self.fail(f"the balancer has not enough memory: {error}")

    def fail(self, reason: str) -> None:
        """Fail the run, and report it to all ranks."""
        self.state.failure = RunFailed(reason)
        self.state.requests.look_at_all()
        for rank in self.state.ranks.values():
            self.finish(rank.peer, self.state.failure)

    def finish(self, peer: bytes, last: RunFailed | EpochEnd) -> None:
        """Send a rank the end of its run."""
        self.state.send(peer, last)
        if peer in self.state.ranks:
            self.state.ranks[peer].finished = True


def _order(job: JobSpec, count: int, epoch: int) -> Int64:
    """Return the order of an epoch, of data of so many samples, or rows of a mixture."""
    if not job.mixture:
        return permutation(count, job.plan.seed, epoch, shuffle=job.shuffle)
    recipe = Recipe.of_facts(job.mixture)
    if (rows := int(recipe.first_rows[-1])) != count:
        raise ValueError(f"the mixture has {rows} rows, and the workers have {count} samples")
    return recipe.order(job.plan.seed, epoch, job.shuffle)
