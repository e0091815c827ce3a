"""The steps of a run that are on their way: their microbatches, holes, and what they hold.

A hole is a sample that could not be used: it stays where the plan has it, and weighs nothing. Where
the loop can take no microbatch without samples (torch's default_collate makes no batch of none, and
a rank that left one out would make the others wait for ever), one that consists of holes gets a
sample of a microbatch that has more. Where none has more, the plan says whether it gets one that
weighs nothing, or the step is left out. All follows from the plan and the holes alone, so that a
resumed run does the same. Budgets hold, as a sample that fits among others fits alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from ..planning.problem.empty_cells import Cell, fill_empty
from ..planning.problem.shapes import Sizing
from ..protocol.job_spec import JobSpec
from ..protocol.parts import KNOWN_BEFORE, Hole, Weights
from .ahead import PlannedStep
from .tasks import (
    Failed,
    FailedSample,
    Killed,
    Load,
    LoadedBatch,
    LocalArrival,
    MicrobatchFacts,
    RunError,
    RunStart,
)

Cells = Mapping[Cell, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Contents:
    """The samples of a microbatch, by ordinal, what they cost, and the weights of its loss.

    padding: what of the costs is padding.
    """

    ordinals: tuple[int, ...]
    costs: tuple[int, ...]
    padding: tuple[int, ...]
    weights: Weights


def usable_cells(
    step: PlannedStep, holes: Collection[int], may_be_empty: bool, has_spares: bool = False
) -> dict[Cell, Sequence[int]] | None:
    """Return the usable ordinals of each microbatch of all ranks.

    Where none may be empty, and there are fewer than microbatches: None, or with has_spares some
    are without any, and get a sample that weighs nothing.
    """
    cells: dict[Cell, Sequence[int]] = {
        (r, m): microbatch.ordinals
        for r, rank in enumerate(step.batch.ranks)
        for m, microbatch in enumerate(rank)
    }
    if not holes and (may_be_empty or all(cells.values())):  # the common case
        return cells
    usable = {cell: [o for o in ordinals if o not in holes] for cell, ordinals in cells.items()}
    if may_be_empty:
        return {**usable}
    return {**usable} if fill_empty(usable) is not None or has_spares else None


def make_contents(
    step: PlannedStep, cells: Cells, played: Sequence[int], label: int, sizing: Sizing
) -> dict[Cell, Contents]:
    """Return what the microbatches of the ranks `played` hold, with the weights of the step.

    label: the column that counts label tokens, -1 for none.
    """
    counts = np.fromiter(map(len, cells.values()), np.int64, len(cells))
    tokens = np.zeros(len(cells), np.int64)
    if label >= 0:
        rows = np.fromiter(chain.from_iterable(cells.values()), np.int64, int(counts.sum()))
        sums = np.concatenate([[0], np.cumsum(step.costs[rows - step.start, label])])
        ends = np.cumsum(counts)
        tokens = sums[ends] - sums[ends - counts]
    both = np.stack([counts, tokens], axis=1).reshape(len(step.batch.ranks), -1, 2)
    whole = both.sum(axis=(0, 1)).tolist()
    of_ranks = both.sum(axis=1)
    contents = {}
    for rank in played:
        of_rank, of_cells = of_ranks[rank].tolist(), both[rank].tolist()
        ordinals = [tuple(cells[rank, microbatch]) for microbatch in range(len(of_cells))]
        rows, begin = step.find_costs([*chain.from_iterable(ordinals)]), 0
        for microbatch, of_cell in enumerate(of_cells):
            end = begin + of_cell[0]
            costs, padding = sizing.total(rows[begin:end])
            weights = Weights(*of_cell, *of_rank, *whole)
            contents[rank, microbatch] = Contents(ordinals[microbatch], costs, padding, weights)
            begin = end
    return contents


def plain_contents(
    step: PlannedStep, played: tuple[int, ...], label: int, sizing: Sizing, may_be_empty: bool,
    has_spares: bool,
) -> dict[Cell, Contents]:  # fmt: skip
    """Return what a process' microbatches hold if no sample is a hole.

    Nothing for a step with fewer samples than microbatches, of which none may be empty.
    """
    cells = usable_cells(step, (), may_be_empty, has_spares)
    return {} if cells is None else make_contents(step, cells, played, label, sizing)


# Microbatches whose labels are counted sample by sample: what is counted wrong is so in the first.
COMPARED = 16
OVER_BUDGET = "over budget, and oversize is 'refuse'"
# Keys that an error names.
QUOTED = 8
# The bytes of one microbatch of so many are counted; of all where the budget is for fewer.
WEIGHED = 64


@dataclass(slots=True, eq=False)
class MicrobatchTask:
    """A microbatch on its way. planned: the ordinals that the plan gives it; ordinals: its own."""

    cell: Cell
    planned: tuple[int, ...]
    ordinals: tuple[int, ...]
    load: Load
    number: int = -1
    loaded: LoadedBatch | None = None


@dataclass(slots=True, eq=False)
class OpenStep:
    """A planned step on its way; tasks: of the ranks played here, open: not handed out yet.

    plain: what they hold if no sample is a hole; contents: what they do hold, None until the step
    is settled. holes: why samples of this process cannot be used, by
    ordinal; all_holes: the ordinals of those of all ranks. fatal: what ends the run, by ordinal.
    """

    plan: PlannedStep
    tasks: list[MicrobatchTask]
    plain: dict[Cell, Contents]
    contents: dict[Cell, Contents] | None
    holes: dict[int, FailedSample] = field(default_factory=dict)
    all_holes: set[int] = field(default_factory=set)
    fatal: dict[int, FailedSample] = field(default_factory=dict)
    is_posted: bool = False
    open: int = 0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run is made of. played: this process' ranks; ranks_elsewhere: there are others.

    named_by_index: samples are named by their index. takes_empty: collate_fn makes a batch of no
    samples. checks_costs: what loading shows is compared with what was planned. post_at: planning
    hears of so many samples that were handed out at once. looks: where in the source samples are
    that ranks compare before they begin. compares: the labels of so many microbatches, the first,
    are counted sample by sample. stats: counts what is handed out. lacks: whether a rank has
    nothing left of what it was given; None where they take turns. known: steps of known holes.
    """

    job: JobSpec
    source: Any
    played: tuple[int, ...]
    ranks_elsewhere: bool
    named_by_index: bool
    takes_empty: bool
    checks_costs: bool
    post_at: int = 1
    looks: tuple[int, ...] = ()
    compares: int = 0
    stats: Any = None
    lacks: Callable[[int], bool] | None = None
    known: tuple[int, ...] = ()


class StepMaker:
    """Makes the steps of a run, and decides what their microbatches hold.

    mean_bytes: of a microbatch's samples, as far as they were counted. deadly: where in the source
    samples are that workers have died of.
    """

    def __init__(self, settings: RunSettings, start: RunStart) -> None:
        self._settings = settings
        self._start = start
        self._known_holes = frozenset(start.holes)
        self._skips = settings.job.on_error == "skip"
        self._counts_batches = settings.job.counts_batches
        self._loads = 0
        self._compares = settings.compares
        self._weighs_all = False
        self.mean_bytes = 0
        self.deadly: set[int] = set()

    def open(
        self, plan: PlannedStep, contents: dict[Cell, Contents], failed: Mapping[int, FailedSample]
    ) -> OpenStep:
        """Return a step, without what was handed out of it before the run began.

        contents: what its microbatches hold if no sample is a hole. failed: samples of the epoch
        that could not be measured, by ordinal.
        """
        at, served = self._start.at, self._start.served
        is_inside = plan.number == at.step and bool(at.microbatch or served)
        step = OpenStep(plan, [], contents, contents)
        self._note_known_holes(step, failed)
        if self._skips and not is_inside and plan.number not in self._settings.known:
            step.contents = None  # all ranks have to say first what they could not load
        elif step.all_holes or not contents:
            step.contents = self.settled(step)
        for microbatch in range(plan.microbatches):
            for number, rank in enumerate(self._settings.played):
                if is_inside and (microbatch, number) < (at.microbatch, served):
                    continue  # handed out before the run was resumed
                cell = rank, microbatch
                planned = plan.ordinals(*cell)
                ordinals = planned if step.contents is None else step.contents[cell].ordinals
                usable = tuple([ordinal for ordinal in ordinals if ordinal not in step.all_holes])
                step.tasks.append(MicrobatchTask(cell, planned, usable, self.load(step, usable)))
        step.open = len(step.tasks)
        return step

    def _note_known_holes(self, step: OpenStep, failed: Mapping[int, FailedSample]) -> None:
        """Note the samples of a step of which it is known that they cannot be used."""
        plan = step.plan
        resumed = self._known_holes
        if not (failed or plan.refused or resumed):
            return
        ordinals = plan.all_ordinals()
        # why it failed is the first reason, and of a resumed run nothing else is known
        for ordinal in ordinals & failed.keys():
            failure = failed[ordinal]
            step.holes[ordinal] = failure
            if (failure.is_io or not self._skips) and ordinal not in resumed:
                step.fatal[ordinal] = failure
        for ordinal in plan.refused:
            step.holes[ordinal] = self._named(plan, ordinal, OVER_BUDGET)
        for ordinal in (ordinals & resumed) - step.holes.keys():
            step.holes[ordinal] = self._named(plan, ordinal, KNOWN_BEFORE)
        step.all_holes = {*step.holes}

    def _named(self, plan: PlannedStep, ordinal: int, why: str) -> FailedSample:
        return self.make_failed(plan.find_indexes([ordinal])[0], why)

    def make_failed(self, index: int, why: str) -> FailedSample:
        """Return that the sample at an index of the source cannot be used, and why."""
        try:
            name = str(self._settings.source.key(index))
        except Exception:  # a data set's own naming, of a sample that is not loaded
            name = str(index)
        return FailedSample(name, why, False)

    def give_up(self, killed: Killed) -> FailedSample:
        """Give up a sample of which too many workers have died."""
        self.deadly.add(killed.index)
        why = f"{killed.deaths} worker processes died while they worked on it"
        return self.make_failed(killed.index, why)

    def load(self, step: OpenStep, ordinals: tuple[int, ...]) -> Load:
        """Return what a worker is to do for a microbatch of these samples."""
        settings = self._settings
        is_spare = not ordinals and not settings.takes_empty
        indexes = step.plan.find_indexes(ordinals)
        if is_spare:
            indexes = [index for index in step.plan.spares if index not in self.deadly]
        counts = self._compares > 0 and not is_spare
        self._compares -= counts
        self._loads += 1
        return Load(
            self._start.epoch, indexes, not settings.named_by_index, settings.checks_costs, counts,
            is_spare, self._weighs_all or self._loads % WEIGHED == 1,
        )  # fmt: skip

    def settled(self, step: OpenStep) -> dict[Cell, Contents]:
        """Return what the microbatches hold; nothing where the whole step is to be passed over."""
        if step.plain and not step.all_holes:
            return step.plain
        plan, job = step.plan, self._settings.job
        cells = usable_cells(plan, step.all_holes, job.plan.empty_microbatches, job.plan.spares)
        if cells is None:
            why = (
                f"usable, but step {plan.number} has fewer such samples than microbatches, and "
                "collate_fn cannot make a batch of no samples"
            )
            for ordinal in plan.all_ordinals() - step.holes.keys():
                step.holes[ordinal] = self._named(plan, ordinal, why)
            step.all_holes = plan.all_ordinals()
            cells = dict.fromkeys(usable_cells(plan, (), True) or {}, ())
        return make_contents(plan, cells, self._settings.played, job.label, job.plan.sizing)

    def count_bytes(self, step: OpenStep, nbytes: int | None) -> None:
        """Take the bytes of a microbatch's samples, where they were asked for.

        Raises RunError where the byte budget cannot hold one for each rank.
        """
        if nbytes is None:
            return
        budget, need = self._settings.job.buffer_bytes, nbytes * len(self._settings.played)
        if need > budget:
            raise RunError(
                f"a byte budget of {budget} cannot hold one microbatch per rank: step "
                f"{step.plan.number} needs {need}; raise buffer_bytes to at least that"
            )
        self.mean_bytes = nbytes if not self.mean_bytes else (7 * self.mean_bytes + nbytes) // 8
        self._weighs_all = budget < WEIGHED * self.mean_bytes

    def is_passed_over(self, step: OpenStep) -> bool:
        """Return whether nothing of a step can be handed out, on any rank."""
        job = self._settings.job
        whole = next(iter(step.contents.values())).weights if step.contents else None
        return whole is not None and not whole.step_samples and not job.plan.empty_microbatches

    def note_failed(self, step: OpenStep, task: MicrobatchTask, loaded: LoadedBatch) -> None:
        """Note the samples that a worker could not load."""
        for place, why in loaded.failed:
            if task.load.spare:
                continue
            ordinal = task.ordinals[place]
            step.holes[ordinal] = why
            step.all_holes.add(ordinal)
            if why.is_io or not self._skips:
                step.fatal[ordinal] = why

    def count_label_tokens(self, step: OpenStep) -> int | None:
        """Return the label tokens of this process' batches of a step, where they are counted.

        None before all of them are made, and where some were handed out already.
        """
        if not self._counts_batches or step.contents is None:
            return None
        batches = [task.loaded for task in step.tasks]
        if len(batches) != step.plan.microbatches * len(self._settings.played):  # resumed inside
            return None
        known = [b for b in batches if b is not None and not isinstance(b.batch, Failed)]
        is_known = len(known) == len(batches) and not self.is_passed_over(step)
        return sum(batch.label_tokens or 0 for batch in known) if is_known else None

    def changed_costs(
        self, step: OpenStep, task: MicrobatchTask, loaded: LoadedBatch
    ) -> tuple[list[int], FailedSample | None]:
        """Return where in the source samples are that cost something else than was planned.

        And what to say of the first. Costs of an earlier epoch are planned with: if a transform
        draws them, that is wrong; where budgets are hard, it ends the run.
        """
        if not loaded.costs:
            return [], None
        bad = {place for place, _ in loaded.failed}
        good = [ordinal for place, ordinal in enumerate(task.ordinals) if place not in bad]
        planned = step.plan.find_costs(good)
        differ = np.flatnonzero((np.array(loaded.costs, np.int64) != planned).any(axis=1)).tolist()
        if not differ:
            return [], None
        plan, place, indexes = self._settings.job.plan, differ[0], step.plan.find_indexes(good)
        now = dict(zip(plan.resources, loaded.costs[place], strict=True))
        was = dict(zip(plan.resources, planned[place].tolist(), strict=True))
        why = (
            f"costs {now}, and in an earlier epoch it cost {was}, which it was planned with: its "
            "transform draws what it costs, or the data have changed; give a cost that is the same "
            "in every epoch"
        )
        failed = self.make_failed(indexes[place], why)
        if plan.limited:
            step.fatal[good[place]] = failed
        return [indexes[row] for row in differ], failed

    def arrival(self, step: OpenStep, task: MicrobatchTask, loaded: LoadedBatch) -> LocalArrival:
        """Return a microbatch as it is handed out."""
        plan, (rank, microbatch) = step.plan, task.cell
        contents = (step.contents or {})[task.cell]
        names = loaded.names
        if self._settings.named_by_index:
            is_whole = task.ordinals == contents.ordinals and not task.load.spare
            indexes = task.load.indexes if is_whole else plan.find_indexes(contents.ordinals)
            names = tuple(map(str, indexes))
        facts = MicrobatchFacts(
            rank=rank,
            step=plan.number,
            microbatch=microbatch,
            microbatches=plan.microbatches,
            weights=contents.weights,
            costs=contents.costs,
            padding=contents.padding,
            after=plan.after,
            keys=names,
            holes=tuple(self._holes(step, task)) if step.holes else (),
            # What ends the run is no hole: it does so again where the run is gone on with.
            step_holes=tuple(sorted(step.all_holes - step.fatal.keys())) if step.all_holes else (),
        )
        return LocalArrival(facts, loaded)

    def count(self, step: OpenStep, sent: Iterable[tuple[OpenStep, MicrobatchTask]]) -> None:
        """Count a step that was handed out, and what is ready after it, if stats are kept."""
        if (stats := self._settings.stats) is not None:
            stats.take_plan(step.plan, step.all_holes, self._settings.job.plan)
            stats.ready = sum(task.loaded is not None for _, task in sent)

    def note_microbatch(self, step: OpenStep, task: MicrobatchTask, error: Exception) -> None:
        """Note on what collate_fn has raised of which microbatch it did."""
        indexes = step.plan.find_indexes(task.ordinals[:QUOTED])
        names = [self.make_failed(index, "").key for index in indexes]
        note_microbatch(error, step.plan.number, task.cell[1], names)

    def _holes(self, step: OpenStep, task: MicrobatchTask) -> Iterator[Hole]:
        """Yield the samples that a microbatch lacks; those refused are the first rank's."""
        refused = step.plan.refused if task.cell == (0, 0) else ()
        for ordinal in (*task.planned, *refused):
            if ordinal in step.holes:
                why = step.holes[ordinal]
                yield Hole(ordinal, why.key, why.reason, why.source)


def note_microbatch(error: Exception, step: int, microbatch: int, names: Sequence[str]) -> None:
    """Note on an error of which microbatch, with samples of these names, it was raised."""
    error.add_note(
        f"microbatch {microbatch} of step {step} (samples {', '.join(names[:QUOTED])}) could not "
        "be made, and comes again until it is: mend collate_fn, or go on from a ledger beyond it"
    )


def first_fatal(step: OpenStep, ordinals: Sequence[int]) -> RunError | None:
    """Return the error of the first of some samples that ends the run."""
    for ordinal in ordinals:
        if ordinal in step.fatal:
            why = step.fatal[ordinal]
            place = f" of {why.source}" if why.source else ""
            raised = None if why.raised is None else why.raised.error
            return RunError(f"sample {why.key!r}{place}: {why.reason}", raised)
    return None
