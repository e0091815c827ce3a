"""One run of a planned loop: an epoch, from a position on, from the plan to microbatches in order.

Theory of operation. Steps come from planning, each with the microbatches of this process' ranks; a
microbatch is a task, given to a worker some way ahead and handed out in the plan's order, whenever
it is made. Samples that planning wants measured are tasks too, in small portions between them.

Where samples may be left out (on_error="skip") a step is *settled* when it is known which of its
samples cannot be used, on any rank: only then is any of it handed out, since every weight of the
step leaves them out. Where the loop takes no microbatch without samples, settling may move samples
between microbatches (steps.py), which are then loaded again.
"""

import json
import logging
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import structs

from ..planning.problem.empty_cells import Cell
from .ahead import PlannedStep
from .planning import Planning, PlanProgress
from .steps import Contents, MicrobatchTask, OpenStep, RunSettings, StepMaker, first_fatal
from .tasks import (
    LOOK,
    Failed,
    FailedSample,
    Killed,
    LoadedBatch,
    LocalArrival,
    Measure,
    MicrobatchFacts,
    RunError,
    RunStart,
    Tasks,
)

# The keys under which each rank says where it begins, and what it has seen of some samples: so
# many, of which an error names some.
KEY, LOOKS = "start", "looks"
LOOKED_AT, NAMED = 16, 4


def pack_start(start: RunStart) -> bytes:
    """Return what has to be the same on all ranks."""
    import hashlib  # here: see PlanConfig.digest

    costs = hashlib.sha256(start.costs.encode()).hexdigest() if start.costs else ""
    return json.dumps([start.epoch, structs.astuple(start.at), costs]).encode()


def describe_start_mismatch(packed: Sequence[bytes]) -> str:
    """Return why ranks cannot run together, "" if they can; `packed` is what each has said.

    >>> from ..protocol.parts import EpochPosition
    >>> starts = [RunStart(epoch, EpochPosition(0, 0, 0, 0, "")) for epoch in (1, 1, 2)]
    >>> describe_start_mismatch([pack_start(each) for each in starts[:2]])
    ''
    >>> print(describe_start_mismatch([pack_start(each) for each in starts]))
    the ranks are not at the same position: rank 0 starts at epoch 1, step 0; rank 2 starts at \
epoch 2, step 0: resume all of them from one ledger
    """
    first = json.loads(packed[0])
    for rank, text in enumerate(packed):
        start = json.loads(text)
        if start[:2] != first[:2]:
            listed = "; ".join(
                f"rank {number} starts at epoch {epoch}, step {at[2]}"
                for number, (epoch, at, _) in ((0, first), (rank, start))
            )
            return (
                f"the ranks are not at the same position: {listed}: resume all of them from one "
                "ledger"
            )
        if start != first:
            return (
                f"the ranks go by different costs of their pipeline: rank {rank} by others than "
                "rank 0: call follow_costs() on all of them or on none, with one pipeline"
            )
    return ""


def pack_looks(marks: Any) -> bytes:
    """Return this rank's host, and the hashes of samples; none if a worker has died of them."""
    return json.dumps([platform.node(), marks if isinstance(marks, list | tuple) else ()]).encode()


def describe_sample_mismatch(packed: Sequence[bytes], indexes: Sequence[int]) -> str:
    """Return which rank has other samples at some indexes, "" for none; `packed`: what each saw.

    Hosts may have other decoders: there only what these cannot change is compared.

    >>> describe_sample_mismatch([b'["a", [["1", "2"]]]', b'["b", [["1", "3"]]]'], [7])
    ''
    >>> describe_sample_mismatch([b'["a", [["1", "2"]]]', b'["a", [["1", "3"]]]'], [7])[:60]
    'of 1 samples that all ranks have loaded rank 1 has others th'
    """
    seen: list[tuple[str, list[list[str]]]] = [json.loads(text) for text in packed]
    hosts = [host for host, _ in seen]
    for rank, (host, marks) in enumerate(seen):
        for part, reference in ((0, 0), (1, hosts.index(host))):
            differ = [
                index
                for index, here, there in zip(indexes, marks, seen[reference][1], strict=False)
                if here[part] and there[part] and here[part] != there[part]
            ]
            if differ:
                named = ", ".join(map(str, differ[:NAMED]))
                return (
                    f"of {len(marks)} samples that all ranks have loaded rank {rank} has others "
                    f"than rank {reference}, or costs them otherwise: at {named}"
                    f"{' and more' * (len(differ) > NAMED)}: give all ranks the same data in the "
                    "same order (sort what a folder lists), transform and cost function; with "
                    "key= ranks compare names, and load nothing for it"
                )
    return ""


# A portion takes a worker about this long, and seldom less than this part of it.
PORTION_S, LEAST_PART, FIRST_PORTION, MOST_PORTION = 0.05, 4, 4, 1024


class Measuring:
    """The measuring of a run; what comes of it is planning's.

    numbers: of tasks. give_up: says of a sample that has killed workers why it cannot be used.
    under_way: what workers measure, by number. differs: whether measuring a sample for another
    epoch gave another cost. measured: how many.
    """

    def __init__(
        self, tasks: Tasks, planning: Planning, epoch: int, numbers: Iterator[int],
        give_up: Callable[[Killed], FailedSample],
    ) -> None:  # fmt: skip
        self._tasks, self._planning, self._numbers = tasks, planning, numbers
        self._epoch, self._give_up = epoch, give_up
        self._waiting: deque[tuple[int, int]] = deque()
        self.under_way: dict[int, list[tuple[int, int]]] = {}
        self._portion = FIRST_PORTION
        self.differs = False
        self.measured = 0

    def want(self, samples: Sequence[tuple[int, int]]) -> None:
        """Have samples measured: their ordinals, and where in the source they are."""
        self._waiting.extend(samples)

    def look(self, indexes: Sequence[int]) -> None:
        """Have samples looked at, which all ranks compare."""
        number = next(self._numbers)
        self.under_way[number] = []
        self._tasks.submit(number, [LOOK, self._epoch, 0, *indexes])

    def send(self, idle: bool) -> None:
        """Give portions to workers; a process that does its tasks itself does them when idle."""
        most = self._tasks.most
        while self._waiting and (idle or most > 1) and len(self.under_way) < most:
            portion = [self._waiting.popleft() for _ in range(self._next_portion(most))]
            number = next(self._numbers)
            self.under_way[number] = portion
            measure = Measure(self._epoch, [index for _, index in portion], self.measured == 0)
            self._tasks.submit(number, measure.packed())

    def _next_portion(self, most: int) -> int:
        """Return how many samples are measured at a time: more than a worker's share if quick."""
        waiting = len(self._waiting)
        share = max(-(-waiting // max(1, most)), self._portion // LEAST_PART)
        return max(1, min(self._portion, share, waiting))

    def take(self, number: int, result: Any) -> bool:
        """Take a task's result; False if it is of none of these. Raises what measuring raised."""
        portion = self.under_way.pop(number, None)
        if portion is None:
            return False
        if not portion:  # where a sample kills, nothing is compared
            self._planning.say(LOOKS, pack_looks(result))
        elif isinstance(result, Killed):
            given_up = [ordinal for ordinal, index in portion if index == result.index]
            self._planning.measured(given_up, [self._give_up(result)] * len(given_up))
            self._waiting.extendleft([sample for sample in portion if sample[1] != result.index])
        elif isinstance(result, Failed):
            result.reraise()
        else:
            self._planning.measured([ordinal for ordinal, _ in portion], result.costs)
            self.differs |= result.differs
            self.measured += len(portion)
            sample_s = result.seconds / max(1, len(portion))
            self._portion = max(1, min(MOST_PORTION, int(PORTION_S / max(sample_s, 1e-6))))
        return True


logger = logging.getLogger(__name__)


class PlannedRun:
    """The state of one run. A method may be left by an exception: then the run is not used again.

    measuring: what planning has had measured. changed: samples that cost something else than was
    planned, by their index in the source. error: why no more is planned. stirred: ranks whose next
    microbatch may be there, or another, since its reader has emptied it.
    """

    def __init__(
        self, settings: RunSettings, start: RunStart, tasks: Tasks, planning: Planning,
        numbers: Iterator[int],
    ) -> None:  # fmt: skip
        """`numbers` are those of the tasks, above those of runs before."""
        self._settings = settings
        self._start = start
        self._tasks = tasks
        self._planning = planning
        self._numbers = numbers
        self._maker = StepMaker(settings, start)
        self._skips = settings.job.on_error == "skip"
        self._steps: deque[OpenStep] = deque()
        # Of each rank that is played here, what is not handed out yet, in order.
        self._heads: dict[int, deque[tuple[OpenStep, MicrobatchTask]]]
        self._heads = {rank: deque() for rank in settings.played}
        self._only = settings.played[0] if len(settings.played) == 1 else None
        # Microbatches that wait to be given to a worker, and those that were, until handed out.
        self._unsent: deque[tuple[OpenStep, MicrobatchTask]] = deque()
        self._sent: dict[int, tuple[OpenStep, MicrobatchTask]] = {}
        self._under_way = 0
        self.measuring = Measuring(tasks, planning, start.epoch, numbers, self._maker.give_up)
        self._failed: dict[int, FailedSample] = {}
        self._unposted = 0
        self.error: Exception | None = None
        self._has_looks = not settings.looks
        # Nothing is handed out before all ranks are known to begin at one position, with one data.
        self._is_agreed = not settings.ranks_elsewhere
        if not self._is_agreed:
            planning.say(KEY, pack_start(start))
            self._agree()
        self._is_over = False
        self.left_out = 0
        self.changed: set[int] = set()
        self.is_first = True
        self.stirred: set[int] = set()

    # --- what happens

    def pump(self, seconds: float = 0.0) -> bool:
        """Take what has come, and give tasks; wait for the first of it at most `seconds`.

        Returns whether anything came. Raises what the workers' end raises.
        """
        came = self._take_plans()
        # Else what has been sent is as much as may be: nothing has changed since.
        if came or not self._under_way or self._settings.lacks is not None:
            self._send()
        if not came and seconds and not (self._under_way or self.measuring.under_way):
            self._planning.wait(seconds)
            came = self._take_plans()
            self._send()
        wait, also = 0.0 if came else seconds, self._planning.fileno()
        while (result := self._tasks.receive(wait, also)) is not None:
            came, wait = True, 0.0
            self._take_result(*result)
            self._send()
        return came

    def head(self, rank: int | None = None) -> LocalArrival | Exception | None:
        """Return the next microbatch of a rank if it can be handed out, None if not yet.

        Without a rank, of all that are played here: microbatch by microbatch, each rank's. Or the
        error to raise: a RunError for one that never can be handed out, or what collate_fn has
        raised; then it is made again for the next call.
        """
        head = self._head(rank)
        if head is None and self.error is not None:
            return self.error
        if head is None or not self._is_agreed:
            return None
        step, task = head
        # A step that is not settled ends with the first sample that ends the run, whose ever it is.
        if step.fatal:
            due = task.planned if step.contents is not None else sorted(step.fatal)
            if (fatal := first_fatal(step, due)) is not None:
                return fatal
        if step.contents is None or task.loaded is None:
            return None
        if isinstance(task.loaded.batch, Failed):
            return self._make_again(step, task, task.loaded.batch)
        if task.load.spare and task.loaded.batch is None and not self._maker.is_passed_over(step):
            return RunError(
                f"none of {len(task.load.indexes)} samples from ordinal {step.plan.start} of epoch "
                f"{self._start.epoch} can be loaded, and collate_fn cannot make a batch of no "
                "samples: repair the data, or give a layout"
            )
        return self._maker.arrival(step, task, task.loaded)

    def describe_wait(self, rank: int | None = None) -> tuple[str, bool]:
        """Return what the next microbatch waits for, and whether other ranks have to say it."""
        head, planning = self._head(rank), self._planning
        if head is None or not self._is_agreed:
            return planning.missing or "the plan of the next window", planning.awaits_ranks
        step, task = head
        if step.is_posted and step.contents is None:
            return planning.missing, True
        worker = self._tasks.describe_worker(task.number)
        return f"microbatch {task.cell[1]} of step {step.plan.number} from {worker}", False

    def find_status(self, rank: int) -> tuple[int, int, bool]:
        """Return step and number of a rank's next microbatch, or -1, -1; if bytes run out."""
        head, is_full = self._head(rank), self._unsent and not self._has_room(*self._unsent[0])
        place = (-1, -1) if head is None else (head[0].plan.number, head[1].cell[1])
        # Until it is known what one takes, others wait for that, and not for bytes.
        held, budget = self._tasks.held_bytes(0, 1), self._settings.job.buffer_bytes
        return *place, bool(is_full) and (self._maker.mean_bytes > 0 or held > budget)

    def is_at_end(self, rank: int | None = None) -> bool:
        """Return whether all of a rank, or of all played here, has been handed out."""
        return self._is_over and self._is_agreed and self._head(rank) is None

    def release(self, facts: MicrobatchFacts) -> None:
        """Forget a microbatch that was handed over; does nothing the second time."""
        head = self._head(facts.rank)
        if head is None:
            return
        step, task = head
        if (step.plan.number, task.cell[1]) != (facts.step, facts.microbatch):
            return
        self._heads[facts.rank].popleft()
        self._sent.pop(task.number, None)
        task.loaded, self.is_first = None, False
        step.open -= 1
        while self._steps and not self._steps[0].open:
            self._count(self._steps.popleft())
        self._send()

    def _count(self, step: OpenStep) -> None:
        """Take note of a step that was handed out to all ranks played here."""
        self._maker.count(step, self._sent.values())
        self._unposted += step.plan.samples
        # Planning is woken up seldom: it has planned ahead.
        if self._unposted >= self._settings.post_at:
            self._planning.handed_out(step.plan.number + 1)
            self._unposted = 0

    # --- plans

    def _take_plans(self) -> bool:
        came = False
        while (progress := self._planning.collect()) is not None:
            self._take_plan(progress)
            came = True
        return came

    def _take_plan(self, progress: PlanProgress) -> None:
        # What was planned before is handed out first, whenever planning came upon it.
        if isinstance(progress.error, ValueError | MemoryError):
            self.error = RunError(str(progress.error))
            self.error.__cause__ = progress.error
        elif progress.error is not None:
            self.error = progress.error
        self._failed.update(progress.failed)
        self.measuring.want(progress.to_measure)
        for plan, contents in progress.steps:
            if plan.number >= self._start.at.step:
                self._add(plan, contents)
        if progress.has_heard:
            self._agree()
            for step in self._steps:
                self._hear(step)
        self._is_over |= progress.is_over
        if progress.is_over or progress.error is not None:
            self.stirred.update(self._settings.played)
        self.left_out = self.left_out or progress.left_out

    def _agree(self) -> None:
        """Look whether all ranks have said how they begin; RunError if not alike."""
        heard, looks = self._planning.heard, self._settings.looks
        if self._is_agreed or KEY not in heard or (looks and LOOKS not in heard):
            return
        self._is_agreed = True
        mismatch = describe_start_mismatch(heard[KEY])
        if mismatch := mismatch or describe_sample_mismatch(heard.get(LOOKS, ()), looks):
            raise RunError(mismatch)

    def _add(self, plan: PlannedStep, contents: dict[Cell, Contents]) -> None:
        """Add a step; what ends the run is not made."""
        step = self._maker.open(plan, contents, self._failed)
        for task in step.tasks:
            self._heads[task.cell[0]].append((step, task))
            if not step.fatal.keys() & {*task.planned}:
                self._unsent.append((step, task))
        if step.tasks:
            self._steps.append(step)
        self._try_settle(step)

    # --- settling

    def _try_settle(self, step: OpenStep) -> None:
        """Settle a step if all that this process makes of it is there, or say so to the others."""
        if step.contents is not None or any(task.loaded is None for task in step.tasks):
            return
        if not self._settings.ranks_elsewhere:
            self._settle(step)
        elif not step.is_posted:
            step.is_posted = True
            self._planning.say(self._key(step), json.dumps(sorted(step.all_holes)).encode())
            self._hear(step)  # where this run is gone on with, they may be known

    def _key(self, step: OpenStep) -> str:
        return f"holes/{step.plan.number}"

    def _hear(self, step: OpenStep) -> None:
        """Settle a step whose holes all ranks have said."""
        values = self._planning.heard.get(self._key(step))
        if values is not None and step.is_posted and step.contents is None:
            step.all_holes.update(*map(json.loads, values))
            self._settle(step)
            self._say_labels(step)

    def _settle(self, step: OpenStep) -> None:
        """Decide what a step's microbatches hold; make those of other samples again."""
        step.contents = self._maker.settled(step)
        for task in step.tasks:
            self.stirred.add(task.cell[0])
            ordinals = step.contents[task.cell].ordinals
            has_spare = bool(ordinals) or self._settings.takes_empty or task.load.spare
            usable = tuple([ordinal for ordinal in task.ordinals if ordinal not in step.all_holes])
            if ordinals != usable or not has_spare:
                self._sent.pop(task.number, None)
                self._tasks.free(None if task.loaded is None else task.loaded.batch)
                task.ordinals, task.loaded = ordinals, None
                task.load = self._maker.load(step, ordinals)
                self._unsent.appendleft((step, task))

    # --- tasks

    def _send(self) -> None:
        """Give tasks to workers: what is needed soonest, and what is to be measured in between."""
        if not (self._has_looks or self._is_agreed):
            self._has_looks = True
            self.measuring.look(self._settings.looks)
        while self._under_way < self._tasks.most and (unsent := self._next_unsent()) is not None:
            step, task = unsent
            if not task.ordinals and self._maker.is_passed_over(step):
                task.loaded = LoadedBatch(None)
                self.stirred.add(task.cell[0])
                continue
            task.number = next(self._numbers)
            self._sent[task.number] = step, task
            self._under_way += 1
            self._tasks.submit(task.number, task.load.packed())
        self.measuring.send(idle=not self._unsent and not self._under_way)

    def _next_unsent(self) -> tuple[OpenStep, MicrobatchTask] | None:
        """Take the next microbatch that may be given to a worker; what a rank lacks goes first."""
        if not self._unsent or self._has_room(*self._unsent[0]):
            return self._unsent.popleft() if self._unsent else None
        for heads in self._heads.values():
            if not heads or heads[0][1].number in self._sent:
                continue
            if self._is_needed(heads[0][1]) and heads[0] in self._unsent:
                self._unsent.remove(heads[0])
                return heads[0]
        return None

    def _is_needed(self, task: MicrobatchTask) -> bool:
        """Return whether a rank waits for a microbatch, and has nothing else."""
        rank, lacks = task.cell[0], self._settings.lacks
        head = self._head(None if lacks is None else rank)
        return head is not None and head[1] is task and (lacks is None or lacks(rank))

    def _has_room(self, step: OpenStep, task: MicrobatchTask) -> bool:
        """Return whether a microbatch may be made now: so many, and so many bytes, are held."""
        limit, mean_bytes = self._tasks.most_held, self._maker.mean_bytes
        if self._skips:
            limit += sum(step.open for step in list(self._steps)[:2])
        if len(self._sent) < limit:
            held = self._tasks.held_bytes(len(self._sent) - self._under_way, mean_bytes)
            if held + (self._under_way + 1) * mean_bytes <= self._settings.job.buffer_bytes:
                return True
        # Of a step that is handed out only when all of it is there, all is needed.
        return (self._skips and step is self._steps[0]) or self._is_needed(task)

    def _take_result(self, number: int, result: Any) -> None:
        if self.measuring.take(number, result):
            return
        if isinstance(result, Killed):
            self._give_up(number, result)
            return
        sent = self._sent.get(number)
        if sent is None or sent[1].loaded is not None:
            self._tasks.free(getattr(result, "batch", None))
            return  # of an earlier run, or made twice
        step, task = sent
        self._under_way -= 1
        task.loaded = result if type(result) is LoadedBatch else LoadedBatch(result)
        if not isinstance(result, Failed):
            self._maker.count_bytes(step, task.loaded.nbytes)
            self._compare_costs(step, task, task.loaded)
            self._maker.note_failed(step, task, task.loaded)
        self.stirred.add(task.cell[0])
        self._try_settle(step)
        self._say_labels(step)

    def _say_labels(self, step: OpenStep) -> None:
        """Tell the others a step's label tokens ahead of need, where collating has counted them."""
        if (tokens := self._maker.count_label_tokens(step)) is not None:
            self._planning.say(f"labels/{step.plan.number}", str(tokens).encode())

    def _give_up(self, number: int, killed: Killed) -> None:
        """Give up a sample of which too many workers have died."""
        index, failed = killed.index, self._maker.give_up(killed)
        step, task = self._sent.pop(number)
        self._under_way -= 1
        if not task.load.spare:  # else another will do
            place = step.plan.find_indexes(task.ordinals).index(index)
            ordinal = task.ordinals[place]
            step.holes[ordinal] = failed
            step.all_holes.add(ordinal)
            if not self._skips:
                step.fatal[ordinal] = failed
                return
            task.ordinals = task.ordinals[:place] + task.ordinals[place + 1 :]
        task.load = self._maker.load(step, task.ordinals)
        self._unsent.appendleft((step, task))

    def _compare_costs(self, step: OpenStep, task: MicrobatchTask, loaded: LoadedBatch) -> None:
        """Note, and say once, which samples cost something else than was planned."""
        changed, first = self._maker.changed_costs(step, task, loaded)
        if first is not None and not self.changed and not step.fatal:
            logger.warning("sample %r %s", first.key, first.reason)
        self.changed.update(changed)

    # --- handing out

    def _head(self, rank: int | None = None) -> tuple[OpenStep, MicrobatchTask] | None:
        """Return the next microbatch of a rank, or of all that are played here, and its step."""
        if rank is None and self._only is not None:
            rank = self._only
        if rank is not None:
            heads_of_rank = self._heads[rank]
            return heads_of_rank[0] if heads_of_rank else None
        firsts = [heads[0] for heads in self._heads.values() if heads]
        return min(firsts, key=lambda head: (head[0].plan.number, head[1].cell[1]), default=None)

    def _make_again(self, step: OpenStep, task: MicrobatchTask, failed: Failed) -> Exception:
        """Return what collate_fn has raised; the microbatch is made again, for the next call."""
        self._sent.pop(task.number, None)
        task.loaded = None
        self._unsent.appendleft((step, task))
        try:
            failed.reraise()
        except Exception as error:
            self._maker.note_microbatch(step, task, error)
            return error
