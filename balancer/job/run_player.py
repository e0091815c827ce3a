"""Plays a job's runs: what its trainers have begun, from the plan to their ranks' microbatches."""

import logging
from dataclasses import replace
from functools import partial
from itertools import count

from ..parties.parties import Parties
from ..parties.run_attempt import RunAttempt
from ..planning.planner import make_planner
from ..planning.problem.shuffle import permutation
from ..pool.pool import NetworkPool
from ..protocol.job_spec import JobSpec
from ..run.ahead import AHEAD_SAMPLES, AHEAD_STEPS, MOST_MEASURED, LoopCosts, PlanAhead, PlanFeed
from ..run.planning import Planning, PlanningThread
from ..run.run import PlannedRun
from ..run.steps import COMPARED, RunSettings, plain_contents
from ..run.tasks import Failed, Killed, LoadedBatch, LocalArrival, RunError, RunStart
from .job_events import JobEvents
from .told_source import ToldSource

# Windows of more samples are planned in a thread beside: the server's loop goes on meanwhile.
MOST_INLINE = 4096


class RunPlayer:
    """Plays what `parties` have begun with the workers of `pool`.

    run: what is played now. costs: what samples cost, as far as is known. last_run: the greatest
    number of a run that these trainers have begun, -1 for none.
    """

    def __init__(
        self, job: JobSpec, takes_empty: bool, pool: NetworkPool, parties: Parties,
        events: JobEvents,
    ) -> None:  # fmt: skip
        self._job, self._takes_empty = job, takes_empty
        self._pool, self._parties, self._events = pool, parties, events
        self._is_large = make_planner(job.plan).window_samples > MOST_INLINE
        self.costs: LoopCosts | None = None
        self._planning: Planning | None = None
        self.run: PlannedRun | None = None
        self._attempt: RunAttempt | None = None
        self._runs = 0
        self.last_run = -1
        self._numbers = count(1)

    def turn(self, source: ToldSource | None) -> None:
        """Give ranks what there is for them, of the run that is to be played."""
        attempt = self._parties.attempt
        if attempt is not self._attempt:
            self.end()
            self._attempt = attempt
            if attempt is not None and source is not None:
                try:
                    self._begin(attempt, attempt.start, source)
                except (ValueError, MemoryError) as error:  # such as a pipeline's costs
                    self.fail(RunError(str(error)))
        if self.run is not None and attempt is not None:
            try:
                self._play(self.run, attempt)
            except (RunError, RuntimeError) as error:  # what a worker has told is the latter
                self.fail(error)
        if attempt is not None:
            for ticket in self._pool.renewed:
                attempt.renew(ticket)
        self._pool.renewed.clear()
        for _, why in self._pool.spoiled[:1]:
            loss = _explain_loss(why)
            self.fail(RunError(f"a microbatch was lost and cannot be made again: {loss}"))

    def _play(self, run: PlannedRun, attempt: RunAttempt) -> None:
        """Give ranks what they want of what is there."""
        while True:
            if self._planning is not None:
                self._planning.wait(0.0)  # which plans, where there is no thread beside
            came = run.pump()
            stirred = run.stirred | attempt.to_look_at.keys()
            run.stirred = set()
            attempt.to_look_at.clear()
            for rank in sorted(stirred):
                self._give(run, attempt, rank)
            if self.run is not run or not (came or run.stirred):
                return

    def _give(self, run: PlannedRun, attempt: RunAttempt, rank: int) -> None:
        while self._parties.attempt is attempt and attempt.wants_more(rank):
            head = run.head(rank)
            if isinstance(head, LocalArrival):
                attempt.give(head.batch, head.loaded or LoadedBatch(None))
                self._events.note_given(head.batch)
                run.release(head.batch)
            elif isinstance(head, Exception):
                self.fail(head)
                return
            else:
                if run.is_at_end(rank):
                    attempt.end(rank, run.left_out)
                return

    def fail(self, error: Exception) -> None:
        """End the run: it cannot go on; what collating raises comes again if loops go on."""
        if self._parties.fail(str(error), comes_again=not isinstance(error, RunError)):
            self._events.log("failure", " fails: %.600s", error, level=logging.ERROR)
        self.end()

    # --- runs

    def _begin(self, attempt: RunAttempt, start: RunStart, source: ToldSource) -> None:
        if attempt.key.run <= self.last_run:
            self._events.log("restart", ": its run starts again at step %d", start.at.step)
        else:
            self._events.log("epoch", ": epoch %d begins", start.epoch)
        if self.costs is None:
            self.costs = LoopCosts.from_source(source, self._job.resources)
        else:
            self.costs.begin_epoch()
        self._runs += 1
        self._events.begin_run()
        self.last_run = max(self.last_run, attempt.key.run)
        job = self._job
        plan = replace(job.plan, pipeline=start.costs) if start.costs else job.plan
        played = tuple(range(plan.ranks))
        describe = partial(
            plain_contents, played=played, sizing=plan.sizing, label=job.label,
            may_be_empty=plan.empty_microbatches, has_spares=plan.spares,
        )  # fmt: skip
        make = partial(_make_ahead, start, replace(job, plan=plan), source, self.costs)
        if self._is_large:
            self._planning = PlanningThread(make, describe)
            self._planning.start()
        else:
            self._planning = Planning(make, describe)
        settings = RunSettings(
            job=job, source=source, played=played, ranks_elsewhere=False,
            named_by_index=not source.names_samples, takes_empty=self._takes_empty,
            checks_costs=self._runs > 1 and source.loads_first,
            post_at=AHEAD_SAMPLES // 4, compares=COMPARED if job.counts_labels else 0,
            lacks=attempt.lacks, known=attempt.known,
        )  # fmt: skip
        self.run = PlannedRun(settings, start, self._pool, self._planning, self._numbers)

    def end(self) -> None:
        """Play nothing any more."""
        self._attempt = None
        if self._planning is not None:
            self._planning.stop()
        if self.run is not None and self.costs is not None:
            run = self.run
            self.costs.is_lasting &= not (run.measuring.differs or run.changed)
        self._planning = self.run = None
        self._pool.forget()


def _explain_loss(why: Killed | Failed) -> str:
    if isinstance(why, Killed):
        return f"{why.deaths} workers died of the sample at {why.index}"
    try:
        why.reraise()
    except Exception as error:
        return str(error)


def _make_ahead(start: RunStart, job: JobSpec, source: ToldSource, costs: LoopCosts) -> PlanAhead:
    """Return the planning of an epoch from a position."""
    plan = job.plan
    if job.mixture:
        from ..planning.mixing.recipe import order_of_rows  # here: other data need none

        order = order_of_rows(job.mixture, len(source), plan.seed, start.epoch, job.shuffle)
    else:
        order = permutation(len(source), plan.seed, start.epoch, job.shuffle)
    feed = PlanFeed(start.epoch, order, make_planner(plan), costs, start.at, source.key)
    ahead = max(AHEAD_SAMPLES, AHEAD_STEPS * plan.samples_per_step)
    return PlanAhead(feed, ahead, min(plan.samples_per_step, MOST_MEASURED))
