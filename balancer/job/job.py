"""A job of a balancer: a planned run that plays all ranks, over a pool of workers on the network.

Theory of operation. Trainers say what they begin, want and have (parties); the run says what each
rank's next microbatch is, as in a local loop, and gives tasks to the pool, which has workers make
and keep them. What a worker keeps is told to the trainers that lack it, and freed when all of them
have it. Nothing here knows a socket: events and the time come in, messages are taken out.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from ..parties.messages import FromTrainer
from ..parties.parties import Parties
from ..parties.starts import RunAttempt
from ..planning.planner import make_planner
from ..planning.problem.shuffle import permutation
from ..pool.messages import FromWorker
from ..pool.pool import GENERATION, NetworkPool
from ..protocol.job_spec import JobSpec, from_json
from ..run.ahead import AHEAD_SAMPLES, AHEAD_STEPS, MOST_MEASURED, PlanAhead
from ..run.arrivals import LocalArrival, RunError, RunStart
from ..run.contents import plain_contents
from ..run.costs import LoopCosts
from ..run.feed import PlanFeed
from ..run.planning import Planning
from ..run.run import PlannedRun
from ..run.steps import RunSettings
from ..run.tasks import Failed, Killed, Made
from .messages import JobOpened, OpenJob
from .told_source import ToldSource
from .worker_stats import JobStats

# Who is silent, hangs or is late is looked for this often.
LOOK_S = 0.05


class PlayedJob:
    """One job; job: JSON of its JobSpec, layout: JSON of how workers make batches of samples.

    makes_planning: `Planning` here and now, or in a thread beside. collates: workers collate.
    """

    def __init__(
        self,
        job: str,
        layout: str,
        collates: bool,
        takes_empty: bool,
        generation: int = 0,
        makes_planning: Callable[..., Planning] = Planning,
    ) -> None:
        """Raises ValueError where the job is none."""
        self.spec: JobSpec = from_json(job)
        skips = self.spec.on_error == "skip"
        self.pool = NetworkPool(self.spec.lease_s, collates, skips, generation)
        # Of workers; those of a balancer before are others.
        self._tokens: dict[bytes, int] = {}
        self._first_token = generation << GENERATION
        self.parties = Parties(
            self.spec.plan.ranks, generation, self._tokens.__getitem__, self._waits_for
        )
        self.opening = OpenJob(1, job, layout)
        self._takes_empty, self._makes_planning = takes_empty, makes_planning
        self._source: ToldSource | None = None
        self._costs: LoopCosts | None = None
        self._planning: Planning | None = None
        self._run: PlannedRun | None = None
        self._attempt: RunAttempt | None = None
        self._runs = 0
        self._numbers = count(1)
        self._looked_at = -math.inf
        self.stats = JobStats(self.pool.workers)

    # --- what happens

    def open_worker(self, worker: bytes, told: JobOpened, now: float) -> str:
        """Take a worker in whose source is open; return why it cannot take part, "" if it can."""
        self.stats.note(worker, told, now)
        if self._source is None:
            try:
                self._source = ToldSource(told, self.spec.resources)
            except ValueError as error:
                return str(error)
            self.parties.set_ready(told.count, told.fingerprint)
        elif (len(self._source), self._source.fingerprint) != (told.count, told.fingerprint):
            return (
                f"it has {told.count} samples of fingerprint {told.fingerprint}, and the others "
                f"{len(self._source)} of {self._source.fingerprint}: give all workers the same "
                "data and software"
            )
        self._tokens.setdefault(worker, self._first_token + len(self._tokens))
        self.pool.add_worker(worker, now)
        return ""

    def from_worker(self, worker: bytes, message: FromWorker, now: float) -> None:
        """Take what a worker says."""
        self.stats.note(worker, message, now)
        self.pool.take(worker, message, now)

    def from_trainer(self, peer: bytes, message: FromTrainer, now: float) -> None:
        """Take what a trainer says."""
        self.parties.receive(peer, message, now)

    def turn(self, now: float) -> list[tuple[bytes, Any]]:
        """Do what there is to do; return messages, and to whom."""
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self.pool.look(now)
            self.parties.tick(now)
        self._follow(self.parties.attempt)
        if self._run is not None:
            try:
                self._go_on(self._run)
            except RunError as error:
                self._fail(error)
        for ticket in self.pool.renewed:
            self.parties.renew(ticket)
        self.pool.renewed.clear()
        for lost in self.parties.lost:
            self.pool.remake(lost.ticket, lost.message.pieces)
        self.parties.lost.clear()
        for _, why in self.pool.spoiled[:1]:
            self._fail(RunError(f"a microbatch was lost and cannot be made again: {_text_of(why)}"))
        for ticket in self.parties.freed:
            self.pool.free(ticket)
        self.parties.freed.clear()
        return [*self.pool.take_messages(), *self.parties.take_messages()]

    def _follow(self, attempt: RunAttempt | None) -> None:
        """Play what is to be played."""
        if attempt is self._attempt:
            return
        self._end()
        self._attempt = attempt
        if attempt is not None and self._source is not None:
            self._begin(attempt, self._source)

    def _go_on(self, run: PlannedRun) -> None:
        """Give ranks what they want of what is there."""
        while True:
            if self._planning is not None:
                self._planning.wait(0.0)  # where there is no thread beside: plan, here
            came = run.pump()
            stirred = run.stirred | self.parties.to_look_at.keys()
            run.stirred = set()
            self.parties.to_look_at.clear()
            for rank in sorted(stirred):
                self._give(run, rank)
            if self._run is not run or not (came or run.stirred):
                return

    def _give(self, run: PlannedRun, rank: int) -> None:
        parties = self.parties
        while parties.attempt is not None and parties.wanted(rank):
            head = run.head(rank)
            if isinstance(head, LocalArrival):
                parties.give(head.batch, head.made or Made(None))
                self.stats.note_given(head.batch, self.spec.plan.budgets)
                run.release(head.batch)
            elif isinstance(head, Exception):
                self._fail(head)
                return
            else:
                if run.is_at_end(rank):
                    parties.end(rank, run.left_out)
                return

    def _fail(self, error: Exception) -> None:
        """End the run: it cannot go on."""
        comes_again = isinstance(error, RunError) and error.comes_again
        self.parties.fail(str(error), comes_again)
        self._follow(None)

    def _waits_for(self, rank: int) -> str:
        """Return what a rank's next microbatch waits for, as text."""
        return "its turn" if self._run is None else self._run.waits_for(rank)[0]

    # --- what is looked at

    @property
    def run(self) -> PlannedRun | None:
        """The run that is played."""
        return self._run

    @property
    def loads_to_measure(self) -> bool:
        """Whether only loaded samples show what they cost."""
        return self._source is not None and self._source.loads_first

    # --- runs

    def _begin(self, attempt: RunAttempt, source: ToldSource) -> None:
        start = attempt.start
        if self._costs is None:
            self._costs = LoopCosts.of_source(source, self.spec.resources)
        else:
            self._costs.begin_epoch()
        self._runs += 1
        self.stats.begin_run()
        job = self.spec
        plan = replace(job.plan, pipeline=start.costs) if start.costs else job.plan
        played = tuple(range(plan.ranks))
        describe = partial(
            plain_contents, played=played, sizing=plan.sizing, label=job.label,
            may_be_empty=plan.empty_microbatches, has_spares=plan.spares,
        )  # fmt: skip
        make = partial(_make_ahead, start, replace(job, plan=plan), source, self._costs)
        self._planning = self._makes_planning(make, describe)
        settings = RunSettings(
            job=job, source=source, played=played, ranks_elsewhere=False,
            named_by_index=not source.names_samples, takes_empty=self._takes_empty,
            checks_costs=self._runs > 1 and source.loads_first,
            post_at=AHEAD_SAMPLES // 4, lacks=self.parties.lacks, known=attempt.known,
        )  # fmt: skip
        self._run = PlannedRun(settings, start, self.pool, self._planning, self._numbers)

    def _end(self) -> None:
        if self._planning is not None:
            self._planning.stop()
        if self._run is not None and self._costs is not None:
            run = self._run
            self._costs.is_lasting &= not (run.measuring.differs or run.changed)
        self._planning = self._run = None
        self.pool.forget()


def _text_of(why: Killed | Failed) -> str:
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
