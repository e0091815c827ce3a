"""The local loop of a balanced loader: this process' workers under a planned order.

It is what a balanced loader takes its microbatches from where no balancer is asked for: the plan
says which samples each microbatch has, and the loader's own workers load and collate them.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ...balancer.planning.planner import make_planner
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.run.ahead import (
    AHEAD_SAMPLES,
    AHEAD_STEPS,
    MOST_MEASURED,
    LoopCosts,
    PlanAhead,
    PlanFeed,
)
from ...balancer.run.planning import Planning, PlanningThread
from ...balancer.run.run import LOOKED_AT, PlannedRun
from ...balancer.run.steps import COMPARED, RunSettings, plain_contents
from ...balancer.run.tasks import InlineTasks, LocalArrival, RunError, RunStart
from ...workers.mixture.order import epoch_order, epoch_samples
from ...workers.planned.reader import CountLabels, PlannedReader
from ...workers.sources.data_identity import spread
from ...workers.sources.interface import Source
from ...workers.sources.randomness import entropy
from ..balanced.settings import LoopSettings
from ..balanced.source import BatchWait, MicrobatchSource, refuse_forked_copy
from ..step import waiting
from ..step.errors import LoaderError
from .starts import LOST_S, MEET_S, log_way, meet_ranks
from .workers import WorkerTasks

if TYPE_CHECKING:
    from ..peers.exchange import Peers

# Returns what is waited for, and whether other ranks have to say it.
WaitsFor = Callable[[], tuple[str, bool]]
# What may hold up a rank that has neither ended nor stopped.
HELD_UP = (
    "; one that runs may be held up in a collective: under DDP others wait in it for a rank that "
    "has left a parameter without a gradient (find_unused_parameters=True allows that)"
)
# A wait looks at the clock this often.
WAIT_S = 1.0


class LocalLoop(MicrobatchSource):
    """Gives a process' microbatches in order.

    An exception may leave `next` at any moment. What it was doing is begun again then, at the
    position that the loader has: workers that are in the middle of something are replaced.
    """

    def __init__(self, settings: LoopSettings) -> None:
        """Take the settings; nothing is started, and no rank met, before the first run."""
        assert settings.local.source is not None
        self._job, self._local, self._place = settings.job, settings.local, settings.place
        self._source = settings.local.source
        self._peers: Peers | None = None
        self._shares_costs = False
        self._costs: LoopCosts | None = None
        self._tasks: WorkerTasks | InlineTasks | None = None
        self._planning: Planning | None = None
        self._run: PlannedRun | None = None
        self._numbers = count(1)
        self._runs = 0
        self._compares = COMPARED if settings.job.counts_labels else 0
        # Whether an exception has left something half done.
        self._is_torn = False
        self._owner = os.getpid()

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""
        return 0 if self._run is None else self._run.left_out

    def count(self, timeout_s: float | None = None) -> int:  # noqa: ARG002
        """Return the number of samples."""
        return epoch_samples(self._source, self._job.shuffle)

    def begin(self, start: RunStart) -> None:
        """Start the next run, and its workers."""
        self._is_torn = True
        self._end_run()
        if self._owner != os.getpid() or not self._local.start.persistent:
            self._end_workers()
        local, source, place = self._local, self._source, self._place
        # The data set may be another than in the epoch before, with more samples or another table.
        if self._costs is not None and self._keeps_costs and len(self._costs) == len(source):
            self._costs.begin_epoch()
        else:
            self._costs = LoopCosts.from_source(source, self._job.resources)
        count = self.count()
        if not 0 <= start.at.start <= count:
            raise LoaderError(
                f"the ledger is at sample {start.at.start}, but the data set has {count}: the "
                "ledger belongs to another data set; resume with its own"
            )
        if self._peers is None and not place.is_alone:
            self._peers, self._shares_costs = meet_ranks(
                self._job, source, local.dataset, place, local.arguments.ranks.name, self._costs,
                local.timeout_s,
            )  # fmt: skip
        if self._tasks is None:
            self._tasks = self._start_workers(start.epoch)
        if self._runs == 0 and 0 in place.played:
            log_way(local.start.workers, self._costs, self._source.decode_first)
        self._start_run(start, self._tasks)
        self._is_torn = False

    def go_on(self, start: RunStart) -> None:
        """Start the next run as `begin` does, with the workers of this one."""
        if self._tasks is None:
            self.begin(start)
            return
        self._is_torn = True
        self._end_run()
        self._start_run(start, self._tasks)
        self._is_torn = False

    def recover(self, start: Callable[[], RunStart]) -> None:
        """Begin again at a position if an exception has left something half done."""
        if isinstance(self._tasks, WorkerTasks):
            refuse_forked_copy(self._owner)
        if self._is_torn or self._run is None:
            self._end_workers()
            here = start()
            if self._planning is None or not self._planning.rewind(here.at.step):
                self.begin(here)
                return
            # Planning goes on, and so does what is agreed with other ranks.
            self._is_torn = True
            self._tasks = self._start_workers(here.epoch)
            self._follow_plan(here, self._tasks, self._planning)
            self._is_torn = False

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch; see MicrobatchSource."""
        run = self._run
        if run is None:
            raise LoaderError("the run has not begun")
        self._is_torn = True
        try:
            run.pump()
            arrival = run.head()
            if arrival is None and not run.is_at_end():
                (arrival,) = self._wait(run, timeout_s, partial(_arrived, run), run.describe_wait)
        except RunError as error:
            raise _make_loader_error(error) from error.__cause__
        delivered: LocalArrival | None = self._unwrap(run, arrival)
        return delivered

    def _wait(
        self, run: PlannedRun, timeout_s: float | None, look: Callable[[], Any], describe: WaitsFor
    ) -> Any:
        """Return what `look` finds once it is there; in a tuple of one the error to raise."""
        log: BatchWait | None = None
        since, soon_s = time.monotonic(), min(waiting.FIRST_LOG_S, timeout_s or math.inf)
        while (arrived := look()) is None:
            waited = time.monotonic() - since
            if waited < soon_s and run.error is None:  # most waits are over before that
                run.pump(soon_s - waited)
                continue
            log = log or BatchWait(run.is_first, f"rank {', '.join(map(str, self._place.played))}")
            missing, is_of_ranks = describe()
            planning = self._planning if is_of_ranks else None
            # A worker may take its time; ranks wait for each other as long as in collectives.
            limit_s = timeout_s or (math.inf if planning is None else MEET_S)
            if planning and planning.has_ended and run.error:
                return (run.error,)
            if planning and waited > LOST_S and planning.lost_reason:
                return (LoaderError(f"other ranks will say nothing more: waits for {missing}"),)
            try:
                log.check(waited, limit_s, missing)
            except TimeoutError as error:  # which leaves nothing half done
                from ..peers.members import STOPPED  # here: a loop on its own needs it not

                advice = "" if planning is None or STOPPED in missing else HELD_UP
                return (TimeoutError(f"{error}{advice}"),)
            run.pump(min(WAIT_S, limit_s - waited))
        return arrived

    def _unwrap(self, run: PlannedRun, arrived: Any) -> Any:
        """Return what was waited for, or raise the error that it is."""
        # A run whose planning has ended is begun again.
        self._is_torn = arrived is not None and arrived is run.error
        if isinstance(arrived, RunError):
            raise _make_loader_error(arrived) from arrived.__cause__
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def release(self, arrival: LocalArrival) -> None:
        """Go on to the microbatches after this one; does nothing the second time."""
        if self._run is not None and not self._is_torn:
            self._is_torn = True
            self._run.release(arrival.batch)
            self._is_torn = False

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None
    ) -> int:
        """Return a step's label tokens on all ranks; `tokens` are those of each rank here."""
        own_tokens, run, planning = sum(tokens.values()), self._run, self._planning
        if self._peers is None or run is None or planning is None:
            return own_tokens
        key, waiting_for = f"labels/{step}", f"the label tokens of step {step} from "
        planning.say(key, str(own_tokens).encode())
        self._is_torn = True
        values = self._wait(
            run, timeout_s, lambda: planning.heard.get(key),
            lambda: (waiting_for + planning.describe_missing(key), True),
        )  # fmt: skip
        self._unwrap(run, values[0])
        return sum(map(int, values))

    def finish(self) -> None:
        """End the run's workers, unless they are persistent."""
        if self._owner != os.getpid():
            return
        self._end_run()
        if not self._local.start.persistent:
            self._end_workers()

    def close(self) -> None:
        """End all processes."""
        self._end_run()
        self._end_workers()
        self._run = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None

    # --- parts

    @property
    def _keeps_costs(self) -> bool:
        """Return whether what was measured in one epoch holds in the next.

        What shows only when a sample is loaded is compared then; otherwise the data set of new
        workers may be another.
        """
        return self._local.start.persistent or self._source.decode_first

    def _start_workers(self, epoch: int) -> WorkerTasks | InlineTasks:
        local, job = self._local, self._job
        count: CountLabels | None = None
        if job.counts_batches:
            from ...workers.collate.labels import count_batch_label_tokens  # here: few do

            count = count_batch_label_tokens
        reader = PlannedReader(
            local.dataset, self._source, job.resources, job.plan.seed, local.batches.in_worker,
            job.on_error == "skip", local.takes_empty, local.batches.draws, job.shift_labels,
            count, local.start.threads,
        )  # fmt: skip
        self._owner = os.getpid()
        if not local.start.workers:
            return InlineTasks(reader)
        seed = entropy(job.plan.seed, epoch, f"workers of rank {self._place.played[0]}")
        return WorkerTasks(reader, local.start, local.prefetch, seed)

    def _start_run(self, start: RunStart, tasks: WorkerTasks | InlineTasks) -> None:
        job = self._job
        plan = replace(job.plan, pipeline=start.costs) if start.costs else job.plan
        costs = self._costs
        assert costs is not None
        # The ranks' runs have the same numbers: one counts from when it can have said something.
        number = self._runs + 1
        make = partial(
            _make_ahead, start, plan, job.shuffle, costs, self._source, self._ahead_samples,
            self._peers if self._shares_costs else None, str(number),
        )  # fmt: skip
        describe = partial(
            plain_contents, played=self._place.played, sizing=plan.sizing,
            label=job.label, may_be_empty=plan.empty_microbatches, has_spares=plan.spares,
        )  # fmt: skip
        # In the trainer's own thread an exception could leave what other ranks wait for half done.
        in_thread = bool(self._local.start.workers or self._peers)
        kind = PlanningThread if in_thread else Planning
        planning = kind(make, describe, self._peers, str(number))
        if isinstance(planning, PlanningThread) and self._peers is None:
            planning.turn()  # the first step is waited for: the thread plans the others
        self._runs, self._planning = number, planning
        self._follow_plan(start, tasks, planning)
        if isinstance(planning, PlanningThread):
            planning.start()

    @property
    def _ahead_samples(self) -> int:
        """Return how many planned samples, not handed out yet, are enough."""
        steps = AHEAD_STEPS * self._job.plan.samples_per_step
        return max(AHEAD_SAMPLES, steps) if self._local.start.workers else 1

    def _follow_plan(
        self, start: RunStart, tasks: WorkerTasks | InlineTasks, planning: Planning
    ) -> None:
        """Make what hands out a plan's microbatches, from a position on."""
        job, source = self._job, self._source
        is_named = source.names_samples
        looks = self._peers is not None and not is_named and self._runs == 1
        run_settings = RunSettings(
            job=job, source=source, played=self._place.played,
            ranks_elsewhere=self._peers is not None, named_by_index=not is_named,
            takes_empty=self._local.takes_empty,
            checks_costs=self._runs > 1 and self._source.decode_first,
            post_at=max(1, self._ahead_samples // 4),
            looks=tuple(spread(len(source), LOOKED_AT)) if looks else (), compares=self._compares,
            stats=self._local.start.stats,
        )  # fmt: skip
        self._end_of_run()
        self._run = PlannedRun(run_settings, start, tasks, planning, self._numbers)
        self._compares = 0

    def _end_run(self) -> None:
        planning, self._planning = self._planning, None
        if planning is not None:
            planning.stop()
        self._end_of_run()

    def _end_of_run(self) -> None:
        if self._run is not None and self._costs is not None:
            # What loading draws is measured anew in each epoch.
            self._costs.is_lasting &= not (self._run.measuring.differs or self._run.changed)

    def _end_workers(self) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.close()


def _make_loader_error(error: RunError) -> LoaderError:
    """Return a run's error as the user gets it."""
    loader_error = LoaderError(str(error))
    if error.raised is not None:
        loader_error.raised = error.raised
        error.raised.add_note(str(loader_error))
    return loader_error


def _arrived(run: PlannedRun) -> tuple[LocalArrival | Exception | None] | None:
    """Return the next microbatch, or what is raised for it; None while it is not there."""
    arrival = run.head()
    return (arrival,) if arrival is not None or run.is_at_end() else None


def _make_ahead(
    start: RunStart, plan: PlanConfig, shuffle: bool, costs: LoopCosts, source: Source, ahead: int,
    shares: "Peers | None", group: str,
) -> PlanAhead:  # fmt: skip
    """Return the planning of an epoch from a position; shares: the ranks that measure."""
    order = epoch_order(source, plan.seed, start.epoch, shuffle)
    try:
        planner = make_planner(plan)
    except ValueError as error:
        prefix = "the costs that a pipeline has measured: " if start.costs else ""
        raise ValueError(f"{prefix}{error}") from error
    feed = PlanFeed(start.epoch, order, planner, costs, start.at, source.key)
    together = min(plan.samples_per_step, MOST_MEASURED)
    return PlanAhead(feed, ahead, together, shares, group)
