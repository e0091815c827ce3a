"""Makes runs; the one that most likely comes next beforehand, while ranks take the last of this.

A trainer that starts an epoch waits for its first batch, and has nothing else to do. What that
waits for in the balancer is the epoch's order, and the plans of its first steps: both follow from
what is known when the last sample of the epoch before has been decoded.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..planning.problem.shuffle import permutation
from ..protocol.job_spec import JobSpec
from ..protocol.messages import EpochPosition, StartRun
from .run.epoch import EpochRun
from .run.granting import STEPS_AHEAD
from .run.planning_feed import WindowPlanner, plans_whole_epoch
from .state import CoordinatorState

# Of larger data sets no second order is held.
MOST_SAMPLES = 1 << 20

# What workers have said that each sample costs; None where they are doubted.
Told = Collection[tuple[int, ...]] | None


class CannotStartError(Exception):
    """A run cannot be started; kind: as in RunFailed."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run that was made beforehand, and what it was made of."""

    run: EpochRun
    job: JobSpec
    data: tuple[int, str, int]
    told: Told


class RunMaker:
    """Makes the runs of a coordinator."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._prepared: _Prepared | None = None
        self._prepared_in: EpochRun | None = None

    def make(self, job: JobSpec, start: StartRun, holes: Collection[int]) -> EpochRun:
        """Return a run; holes: ordinals of samples that ranks report to be unusable.

        Raises CannotStartError.
        """
        prepared, self._prepared = self._prepared, None
        self._prepared_in = None
        if prepared is not None and not holes and self._fits(prepared, job, start):
            run = prepared.run
        else:
            run = self._made(job, start, holes)
        run.leases.last = self._state.last_lease
        return run

    def is_due(self) -> bool:
        """Return whether the next run can be prepared: workers have done all of this one."""
        run = self._state.run
        if run is None or run is self._prepared_in or not run.feed.ended:
            return False
        delivery = run.delivery
        # Before the first batch is sent a rank waits for it.
        is_done = delivery.has_sent and not run.leases and not delivery.decoding.has_samples()
        return is_done and self._state.failure is None

    def prepare(self) -> None:
        """Make the run that comes next if nobody says otherwise, and plan its first steps."""
        run, state = self._state.run, self._state
        self._prepared, self._prepared_in = None, run
        # Costs of what could not be used are forgotten when the next run starts, not before.
        if run is None or state.count > MOST_SAMPLES or state.costs.has_failed:
            return
        begin = run.begin
        at = EpochPosition(0, 0, 0, 0)
        start = StartRun(begin.run + 1, begin.epoch + 1, at, costs=begin.costs)
        try:
            made = self._made(run.job, start, ())
            made.feed.plan_ahead(STEPS_AHEAD)
        except (CannotStartError, ValueError, MemoryError):
            return  # if it is asked for, it is said why
        self._prepared = _Prepared(made, run.job, self._data(), self._told(run.job))

    def _fits(self, prepared: _Prepared, job: JobSpec, start: StartRun) -> bool:
        """Return whether a run that is to start now would be made of the same."""
        return (
            prepared.run.begin == start
            and prepared.job == job
            and prepared.data == self._data()
            and prepared.told == self._told(job)
            and not self._state.costs.has_failed
        )

    def _made(self, job: JobSpec, start: StartRun, holes: Collection[int]) -> EpochRun:
        state = self._state
        count, fingerprint, _ = self._data()
        first = start.start.start
        if not 0 <= first <= count:
            reason = f"the ledger is at sample {first}, but the data set has {count}: "
            raise CannotStartError(
                "protocol",
                f"{reason}the ledger belongs to another data set; resume with its own",
            )
        try:
            order = permutation(count, job.plan.seed, start.epoch, shuffle=job.shuffle)
        except MemoryError as error:
            reason = f"the balancer has no memory for an order of {count}: {error}"
            raise CannotStartError("plan", reason) from error
        planner = self._planner(job, start)
        # Holes are reported by their names, which are not kept.
        state.costs.note_failed(order[[each for each in holes if each < count]].tolist())
        whole = plans_whole_epoch(planner)
        known = state.costs.known_to(job, count, fingerprint, whole, self._told(job))
        # What this machine's own workers send is not doubted: they are this trainer's processes.
        check = state.check_layout if job.source else None
        return EpochRun(start, job, order, planner, known, check, state.pool.note, state.shared)

    def _data(self) -> tuple[int, str, int]:
        return self._state.count, self._state.fingerprint, self._state.costs.forgotten

    def _told(self, job: JobSpec) -> Told:
        doubts = self._state.check_layout is not None and job.source
        return None if doubts else self._state.told_costs()

    def _planner(self, job: JobSpec, start: StartRun) -> WindowPlanner:
        if not start.costs:
            return self._state.plan_with(job.plan)
        try:
            return self._state.plan_with(replace(job.plan, pipeline=start.costs))
        except ValueError as error:
            raise CannotStartError(
                "plan", f"the costs that a pipeline has measured: {error}"
            ) from error
