"""The core of a balanced loader: an epoch's microbatches in order, and its position.

Everything that a trainer can see follows from (data, seed, epoch, plan); processes, sockets and
timing are behind a source of microbatches, which is opened at first use.

`next()` may raise at any moment: in a collate_fn, on a full disk, by Ctrl-C or another signal's
handler. A caller who goes on must get what was not returned. So the position of a loader moves by
one assignment, the last thing before `next()` returns, and everything up to there can be done
again: a microbatch is fetched *at* a position, and at the same position it is the same microbatch,
unpacked once. The source is told of it (`release`) when it is unpacked; until then it has it, too.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.layout import find_base
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.run.steps import note_microbatch
from ...balancer.run.tasks import LocalArrival, RunStart
from ...workers.sources.data_identity import KnownData
from ...workers.sources.failures import SkippedSample
from ...workers.sources.interface import source_name
from ..collate.chosen import BatchMaker
from ..resume.balanced_position import (
    START,
    ResumePosition,
    check_counted,
    checked_after,
    needed_samples,
    read_position,
    write_position,
)  # fmt: skip
from ..resume.ledger import BalancedLedger
from ..step.errors import ComesAgainError, LoaderError, OneCaller
from ..step.info import Step, StepInfo
from ..step.labels import LabelCheck, clear_labels
from .settings import BalancedArguments, LoopSettings
from .source import MicrobatchSource, StreamLedgers
from .step_infos import OverBudget, make_info

if TYPE_CHECKING:
    from .followed_costs import FollowedCosts, MeasuredCosts

logger = logging.getLogger(__name__)

Holes = tuple[int, ...]
Place = tuple[int, int, int]
LIGHTNING = ("lightning", "pytorch_lightning")
NOT_KNOWN = "of a stream the number of samples, and so of steps, is not known"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A collated microbatch to be handed out, its StepInfo, and the position after it."""

    batch: Any
    info: StepInfo
    after: ResumePosition


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A microbatch of which nothing can be handed out, and the position after it."""

    after: ResumePosition


@dataclass(slots=True)
class Received:
    """A microbatch that was fetched at a position, until one is fetched at another.

    reported: how many of its holes are in the dead-letter file.
    """

    arrival: LocalArrival
    at: ResumePosition
    reported: int = 0
    unpacked: Fetched | PassedOver | None = None


@dataclass(slots=True)
class BalancedLoader:
    """Microbatches of one process' ranks; not safe to share between threads.

    `connect` makes the connection; `data` returns which data there are now. `auto` is what
    balance="auto" has found, for the ledger; `compares_batches` is False where a framework
    counts labels itself; then those of a microbatch that weighs nothing are -100.
    `sources` are a mixture's names, with which keys begin; `skipped` returns ordinals to leave out.
    `stream`: of data whose number of samples is not known, so that each rank has a ledger of its
    own. `job` is that of the settings, but for the costs that a pipeline has measured.
    """

    settings: LoopSettings
    connect: Callable[[], MicrobatchSource]
    data: Callable[[], KnownData]
    auto: str = ""
    compares_batches: bool = True
    sources: tuple[str, ...] = ()
    skipped: Callable[[int], Holes] | None = None
    stream: StreamLedgers | None = None
    caller: OneCaller = field(default_factory=OneCaller, repr=False)
    epoch: int = 0
    next_epoch: int = 0  # of the next iteration, unless it resumes
    pinned: bool = False  # whether the iterations after it have the same
    # What next() has returned. It moves by one assignment.
    position: ResumePosition = START
    before: ResumePosition = START  # where the last next() began
    _resume: ResumePosition | None = None
    _generation: int = 0
    _checked: int = -1
    _untouched: int = -1
    _running: int = 0
    _announced: int | None = None
    _left_by: str = ""
    _loaded: BalancedLedger | None = field(default=None, repr=False)
    _counted: int | None = None
    _left_out_before: int | None = None
    _connection: MicrobatchSource | None = field(default=None, repr=False)
    _followed: "FollowedCosts | None" = None
    _costs: str = ""
    _over_budget: OverBudget = field(init=False, repr=False)
    _labels: LabelCheck = field(init=False, repr=False)
    job: JobSpec = field(init=False)

    def __post_init__(self) -> None:
        self.job = self.settings.job
        limits = zip(self.plan.resources, self.plan.budgets, strict=True)
        is_laid = find_base(self.batches.balance.layout) is not None
        self._labels = LabelCheck(self.job.label_tokens, is_laid, self.job.shift_labels)
        self._over_budget = OverBudget(dict(limits), self.plan.padded)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The data-parallel ranks that this process plays."""
        return self.settings.place.played

    @property
    def batches(self) -> BatchMaker:
        """What makes batches of samples."""
        return self.settings.local.batches

    @property
    def _arguments(self) -> BalancedArguments:
        return self.settings.local.arguments

    @property
    def plan(self) -> PlanConfig:
        """The configuration of the plan, for all ranks."""
        return self.job.plan

    @property
    def no_steps_reason(self) -> str:
        """Why the number of steps in an epoch is not known beforehand; "" if it is."""
        if self.stream is not None:
            return NOT_KNOWN
        is_exact = self.plan.mode == "exact"
        return "" if is_exact else f"in mode {self.plan.mode!r} the number of steps is not known"

    @property
    def ledger_per_rank(self) -> bool:
        """Whether each rank has a ledger of its own."""
        return self.stream is not None

    @property
    def left_out(self) -> int:
        """Samples of this epoch that are holes, so far; between epochs, those of the last.

        Then those count, too, that no step has had, but for what drop_last drops.
        """
        return self.position.left_out if (n := self._left_out_before) is None else n

    @property
    def microbatches_per_step(self) -> int | Literal["auto"]:
        """The microbatches that this process has in a step; "auto" where steps differ."""
        rows = self.plan.accumulate
        return rows if rows == "auto" else rows * len(self.ranks)

    def open(self) -> MicrobatchSource:
        """Return the connection; connect at the first call."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def close(self) -> None:
        """End the connection, and with it the processes that were started for it."""
        self._leave("the loader was closed")
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def count(self) -> int:
        """Return the number of samples; connects if need be.

        Raises ValueError (fewer than ranks; a loaded ledger of other data) and TimeoutError, and
        TypeError for a stream.
        """
        if self.stream is not None:
            raise TypeError(NOT_KNOWN)
        count = self.data().samples if self.sources else None
        count = count or self.open().count(self.settings.local.timeout_s)
        if self._loaded is not None:
            check_counted(
                self._loaded, replace(self.data(), samples=count), self._arguments.growing_data
            )
        self._loaded, self._counted = None, count
        if count < (ranks := self.plan.ranks):
            raise ValueError(f"{count} samples cannot feed {ranks} ranks: use fewer ranks")
        return count

    def set_epoch(self, epoch: int, pins: bool = True) -> None:
        """Choose the epoch of the next iteration, or all; a position within another is dropped."""
        self.next_epoch, self.pinned = epoch, pins
        if epoch != self.epoch:
            self._left_out_before = self.left_out
            self.epoch, self.position, self._resume = epoch, START, None
            self._loaded, untouched = None, self._untouched
            self._leave(f"epoch {epoch} was chosen")
            self._untouched = untouched

    def begin(self) -> int:
        """Begin an iteration, from the loaded position if any; return its number.

        The workers are started here, as torch's are when iter() is called.
        """
        self._leave("a new one was started")
        self.epoch = self.epoch if self._resume else self.next_epoch
        self.position, self._resume = self._resume or START, None
        self._left_out_before = None
        at = self.position
        if self.job.counts_batches:  # of a step that was begun, in all of its batches again
            at = at.beginning()
        # An iterator before this one may be collected at any moment from here on: what it would
        # end is this one's.
        self._running = 0
        try:
            self._take_costs(at, None)
            grows = self._arguments.growing_data or bool(self.sources)
            samples = needed_samples(self._loaded, grows)
            at.refuse_late_skips(skipped := self._skipped(), self.plan)
            at = at.leaving_out(skipped)
            stream = self.open().begin(at.start(self.epoch, self._costs, samples))
            if stream is not None and self.position.stream is None:
                self.position = replace(self.position, stream=stream)
        except BaseException:
            self.close()
            raise
        self._running = self._untouched = self._generation
        self.next_epoch = self.next_epoch if self.pinned else self.epoch + 1
        return self._generation

    def begins_again(self, generation: int) -> bool:
        """Return whether an iterator was left only because another epoch was chosen.

        Lightning opens one before it says the epoch: if nothing was taken of it, it takes the
        other epoch.
        """
        return generation == self._untouched != self._generation

    def state_dict(self, after: StepInfo | None = None) -> dict[str, Any]:
        """Return the ledger of what has been handed out; see loader/resume/ledger.py.

        With `after`: as of when that microbatch was handed out. ValueError if none of ours was.
        """
        position, epoch, data = self._resume or self.position, self.epoch, self.data()
        if after is not None:
            position, epoch = checked_after(after.after, self.ledger_per_rank), after.epoch
        elif self._resume is None and not sys.modules.keys().isdisjoint(LIGHTNING):
            from ..step.accumulation import holds_a_batch  # here: other loops need none

            position = self.before if holds_a_batch() else position
        if self.stream is not None:
            return self.stream.write_position(self.settings, epoch, position, data)
        if data.samples is None:  # only the workers know
            loaded = None if self._loaded is None else self._loaded.samples
            data = replace(data, samples=loaded if self._counted is None else self._counted)
        return write_position(self.job, epoch, position, data, self.auto)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a ledger; ValueError if this loader cannot. Running iterators end."""
        ledger: BalancedLedger | None = None
        if self.stream is not None:
            epoch, position = self.stream.read_position(self.settings, state, self.data())
        else:
            self._take_costs(None, None)
            ledger, position = read_position(
                state, self.job, len(self.ranks), self.data(), self._arguments.growing_data
            )
            epoch = ledger.epoch
        self._leave("load_state_dict() was called")
        self.epoch = self.next_epoch = epoch
        self._resume, self.pinned, self._loaded, self._counted = position, False, ledger, None

    def follow_costs(self, pipe: "MeasuredCosts") -> None:
        """Order microbatches by the costs that a pipeline measures; ValueError without ordering."""
        from .followed_costs import FollowedCosts  # here: few loops follow any

        self._followed = FollowedCosts(pipe, self.plan)

    def _make_start(self, at: ResumePosition, costs: str | None = None) -> RunStart:
        costs = self._costs if costs is None else costs
        return at.leaving_out(self._skipped()).start(self.epoch, costs)

    def _skipped(self) -> Holes:
        return () if self.skipped is None else self.skipped(self.epoch)

    def _take_costs(self, at: ResumePosition | None, source: MicrobatchSource | None) -> None:
        """Take the costs of the pipeline that is followed, if they have changed before a step.

        `at`: None to resume; inside a step costs stay. A `source` that runs begins a run by them.
        """
        followed = self._followed
        if followed is None or (at is not None and at.is_inside_step):
            return
        plan = followed.find_changed_plan(self.epoch, None if at is None else at.place)
        if plan is None:
            return
        costs = followed.find_costs_to_tell(plan)
        if at is not None and source is not None:
            source.go_on(self._make_start(at, costs))
        self.job, self._costs = replace(self.job, plan=plan), costs
        followed.accept()

    def _tell_what_will_be_left_out(self) -> None:
        """Log once how many samples at an epoch's end make no step, where that is known before.

        In each iteration the samples are counted, and compared with a ledger's, before any comes.
        """
        if self.stream is not None or self._checked == self._generation:
            return
        plan, remainder = self.plan, self.count() % self.plan.samples_per_step
        self._checked = self._generation
        if self._announced is not None:
            return
        if plan.last_step != "whole" and plan.mode == "exact":
            self._announced = remainder - plan.last_kept(remainder)  # by the line at start
            return
        is_left = plan.mode == "exact" and not plan.drop_last and not plan.keeps_last(remainder)
        self._announced = remainder if is_left else 0
        if self._announced and 0 in self.ranks:
            logger.warning(
                "the last %d of %d samples are left out of every epoch: they are fewer than the %d "
                "microbatches of a step, and collate_fn cannot make a batch of no samples",
                remainder, self.count(), plan.least_microbatches,
            )  # fmt: skip

    def receive(self, at: ResumePosition) -> LocalArrival | None:
        """Return the microbatch at a position, None at the end; LoaderError ends all processes."""
        try:
            source = self.open()
            self._take_costs(at, source)
            source.recover(lambda: self._make_start(at))
            self._tell_what_will_be_left_out()
            return source.next(self.settings.local.timeout_s)
        except ComesAgainError:
            raise
        except LoaderError as error:
            self.close()
            if error.raised is None:
                raise
            raised = error.raised
        raise raised  # here: with the context that it has

    def add_up_labels(self, step: int, tokens: Mapping[int, int]) -> int:
        """Return a step's label tokens on all ranks; LoaderError ends all processes."""
        try:
            return self.open().add_up_labels(step, tokens, self.settings.local.timeout_s)
        except LoaderError:
            self.close()
            raise

    def unpack(self, received: Received) -> Fetched | PassedOver:
        """Unpack a microbatch to be handed out; return it with the position after it.

        Each hole is written to the dead-letter file, once.
        """
        batch, skipped = received.arrival.batch, self._skipped()
        if (dead_letter := self._arguments.on_error.dead_letter) is not None:
            self._record_holes(dead_letter, received, skipped)
        after = received.at.after(received.arrival, self.ranks, skipped)
        if after.unusable > received.at.unusable:
            self._check_errors(after.unusable, batch.step)
        if self._passes_over(batch):
            return PassedOver(after)
        fetched = self._deliver(received, after)
        self._over_budget.take_batch(fetched.batch, fetched.info)
        return fetched

    def _record_holes(self, path: str, received: Received, skipped: Holes) -> None:
        """Append a dead letter for each hole but those asked for."""
        from ...workers.sources.dead_letters import record_letter  # here: most write none

        for hole in received.arrival.batch.holes[received.reported :]:
            if hole.ordinal not in skipped:
                where = hole.source or source_name(self.settings.local.dataset)
                record_letter(path, SkippedSample(hole.key, hole.reason, "data", where))
            received.reported += 1

    def _passes_over(self, batch: Any) -> bool:
        """Return whether nothing of a microbatch's step can be handed out, on any rank."""
        if batch.weights.step_samples or (self.plan.empty_microbatches and self.stream is None):
            return False
        if batch.rank == 0 and batch.microbatch == 0 and self.stream is None:
            logger.warning(
                "step %d of epoch %d is left out: of its %d samples fewer can be used than it has "
                "microbatches, and collate_fn cannot make a batch of no samples",
                batch.step, self.epoch, len(batch.step_holes),
            )  # fmt: skip
        return True

    def end_epoch(self, generation: int) -> None:
        """End the epoch of an iterator that has had all of it."""
        in_no_step = self.open().left_out
        if in_no_step > (self._announced or 0) and 0 in self.ranks:
            logger.warning(
                "%d samples were left out of epoch %d: there were fewer than microbatches, and "
                "collate_fn cannot make a batch of no samples, or all were refused",
                in_no_step, self.epoch,
            )  # fmt: skip
        self._over_budget.end_epoch()
        self._left_out_before = self.position.left_out + in_no_step
        self.epoch, self.position = self.epoch + 1, START
        self.finish(generation)

    def finish(self, generation: int) -> None:
        """End the workers of an iterator that is over, unless a later one has its own already."""
        if self._running == generation and self._connection is not None:
            self._running = 0
            self._connection.finish()

    def check_current(self, generation: int) -> None:
        """Raise RuntimeError for an iterator that was left behind."""
        if generation != self._generation:
            raise RuntimeError(
                f"this iterator is over: {self._left_by} after it was opened; call iter() again"
            )

    def _leave(self, why: str) -> None:
        """Leave the iterators behind that were opened before."""
        self._generation += 1
        self._untouched, self._left_by = -1, why

    def _check_errors(self, unusable: int, step: int) -> None:
        """Raise LoaderError, on all ranks at the same step, when too many samples are lost."""
        on_error = self._arguments.on_error
        if isinstance(allowed := on_error.max_errors, float):
            allowed = int(allowed * self.count())
        if allowed is not None and unusable > allowed:
            self.close()
            where = f", see {on_error.dead_letter}" if on_error.dead_letter else ""
            raise LoaderError(
                f"{unusable} samples of epoch {self.epoch} could not be used up to step "
                f"{step}, and max_errors={on_error.max_errors} allows {allowed}{where}: repair the "
                "data, or allow more"
            )

    def _deliver(self, received: Received, after: ResumePosition) -> Fetched:
        job, over, batch = self.job, self._over_budget, received.arrival.batch
        resources = received.arrival.resources or job.resources
        info = make_info(
            batch, self.epoch, self.plan.ranks, resources, over, after, self.sources,
            job.shift_labels,
        )  # fmt: skip
        unpacked = received.arrival.unpack()
        batch = unpacked.batch
        if unpacked.labels is not None and job.counts_labels:
            self._labels.compare(*unpacked.labels, info.label_tokens, info.keys)
        if info.keys and self.stream is None and isinstance(batch, Mapping) and "labels" in batch:
            declares = job.counts_labels and self.compares_batches
            self._labels.compare_batch(batch, info.label_tokens if declares else None, info.keys)
        if not info.keys and not self.compares_batches:
            batch = clear_labels(batch)
        if job.counts_batches:
            info = replace(info, label_tokens=unpacked.label_tokens or 0)
        return Fetched(self.batches.finished(batch, info), info, after)


class Fetcher:
    """Fetches at positions; what is fetched at one stays there however often it is asked for."""

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        self._loader, self._stats = loader, stats
        self._received: Received | None = None

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run.

        Raises what unpacking raises.
        """
        received = self._received
        if received is None or received.at is not at:
            arrival = self._loader.receive(at)
            received = self._received = None if arrival is None else Received(arrival, at)
        if received is None:
            return None
        unpacked = received.unpacked
        if unpacked is None:
            unpacked = received.unpacked = self._unpack(received)
            if self._stats is not None:
                self._stats.take_holes(received.arrival.batch.holes)
            received.arrival.loaded = None  # its samples are not needed any more
        self._loader.open().release(received.arrival)
        return unpacked

    def _unpack(self, received: Received) -> Fetched | PassedOver:
        try:
            return self._loader.unpack(received)
        except LoaderError:
            raise
        except Exception as error:
            batch = received.arrival.batch
            note_microbatch(error, batch.step, batch.microbatch, batch.keys)
            raise


class CountedSteps:
    """Fetches as Fetcher does, where label tokens are known only when batches are collated.

    A StepInfo is complete before its step's first microbatch is handed out: so all of the step are
    fetched, and the ranks' counts added up. No collective is called. What comes out are the same
    microbatches at the same positions. What was fetched of a step is kept until another step is
    asked for: after an exception it goes on where it was.
    """

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        self._loader, self._fetcher = loader, Fetcher(loader, stats)
        # The position at which the step that is kept begins.
        self._first: ResumePosition | None = None
        self._parts: list[tuple[Place, Fetched]] = []
        self._counted: dict[Place, Fetched] = {}

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run."""
        if (counted := self._counted.get(_place(at))) is not None:
            return counted
        if self._first is None or at.place.step != self._first.place.step:
            self._first, self._parts, self._counted = at.beginning(), [], {}
        here = self._parts[-1][1].after if self._parts else self._first
        while not self._parts or here.place.step == at.place.step:
            fetched = self._fetcher.fetch(here)
            if fetched is None:
                return None
            if isinstance(fetched, Fetched):
                self._parts.append((_place(here), fetched))
            elif fetched.after.place.step != at.place.step:
                return fetched  # the whole step, on all ranks
            here = fetched.after
        tokens: Counter[int] = Counter()
        for _, part in self._parts:
            tokens[part.info.rank] += part.info.label_tokens
        total = self._loader.add_up_labels(at.place.step, tokens)
        self._counted = {
            place: replace(
                part,
                info=replace(
                    part.info, rank_label_tokens=tokens[part.info.rank], step_label_tokens=total
                ),
            )
            for place, part in self._parts
        }
        return self._counted[_place(at)]


def _place(at: ResumePosition) -> Place:
    return at.place.step, at.place.microbatch, at.served


class Microbatches:
    """An epoch's microbatches in order; `fetch` may be repeated after any exception.

    At its end the epoch is over and the next one's number is set. What was left behind, by another
    iteration or by load_state_dict, raises RuntimeError.
    """

    def __init__(self, loader: BalancedLoader, stats: Any = None) -> None:
        """Begin an iteration: see BalancedLoader.begin. stats: counts it, if it is given."""
        self._loader, self._stats = loader, stats
        self._generation = -1  # of none, if it cannot begin
        self._begin()

    def _begin(self) -> None:
        loader = self._loader
        self._generation = loader.begin()
        fetcher = CountedSteps if loader.job.counts_batches else Fetcher
        self._fetcher = fetcher(loader, self._stats)
        self._epoch = loader.epoch
        self._touched = self._over = False

    def __del__(self, _finalizing: Any = sys.is_finalizing) -> None:
        # A module's names may be gone by then, and to print that error can hang.
        if not _finalizing():
            self._loader.finish(self._generation)

    def fetch(self, at: ResumePosition) -> Fetched:
        """Return the microbatch at a position, StopIteration at the end; see Fetcher."""
        loader = self._loader
        if not self._touched and loader.begins_again(self._generation):
            self._begin()
            at = loader.position
        self._touched = True
        while not self._over:
            loader.check_current(self._generation)
            # An exception may have come between the end of the epoch and the next line but three.
            fetched = self._fetcher.fetch(at) if loader.epoch == self._epoch else None
            if isinstance(fetched, Fetched):
                return fetched
            if fetched is not None:  # whole steps are passed over: nothing waits to be returned
                at = loader.position = fetched.after
                continue
            if loader.epoch == self._epoch:
                loader.end_epoch(self._generation)
                if self._stats is not None:
                    self._stats.end()
            self._over = True
        raise StopIteration


class Steps(Iterator[Step]):
    """An iterator over whole steps; next() may be repeated after any exception.

    Where the position is inside a step, the first has what is left of it.
    """

    def __init__(self, loader: BalancedLoader, whole: Any) -> None:
        """Begin an iteration: see BalancedLoader.begin. whole: the DataLoader."""
        self._loader, self._whole = loader, whole
        self._stats = whole._stats
        self._microbatches = Microbatches(loader, self._stats)
        self._parts: list[Fetched] = []

    def __len__(self) -> int:
        """Return the steps of a whole epoch, as torch's iterators do; TypeError if not known."""
        steps: int = self._whole.num_steps
        return steps

    def __next__(self) -> Step:
        loader = self._loader
        loader.caller.enter()
        try:
            if self._stats is not None:
                self._stats.wait()
            step, after = self._fetch()
            if self._stats is not None:
                self._stats.take(zip(step.microbatches, step.infos, strict=True))
        except BaseException:
            loader.caller.thread = None
            raise
        loader.caller.thread = None
        loader.before, loader.position = loader.position, after
        return step

    def _fetch(self) -> tuple[Step, ResumePosition]:
        """Return the next step and the position after it."""
        loader, parts = self._loader, self._parts
        if parts and parts[-1].after is loader.position:
            parts = self._parts = []  # of the step that was returned last
        last_rank = loader.ranks[-1]
        while not parts or not parts[-1].info.last or parts[-1].info.rank != last_rank:
            parts.append(self._microbatches.fetch(parts[-1].after if parts else loader.position))
        infos = tuple(part.info for part in parts)
        step = Step(infos[0].step, tuple(part.batch for part in parts), infos)
        return step, parts[-1].after
