"""Plans an epoch ahead of need: pure, events in and results out, no thread and no clock.

`LoopCosts` says what samples cost, as far as that is known. `PlanFeed` plans an epoch's windows one
after the other; only the position (a window's first ordinal and first step) carries over from one
to the next, so that a run can start at any of them, and every rank plans the same. A window can be
planned when all of its costs are known: `PlanAhead` has those measured that are not, in *blocks* of
a step's samples at most, whatever windows the plan makes. Each rank measures its part of a block,
and tells the others when it has all of it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from ..planning.kernels.arrays import Int64, Mask
from ..planning.planner import Planner
from ..planning.problem.config import GlobalBatch, Planned, Window
from ..planning.problem.costs import OversizeError
from ..protocol.parts import EpochPosition
from .tasks import FailedSample

# What an earlier run has kept of a sample: its costs by resource, None for nothing.
FindRecord = Callable[[int], Any]


class LoopCosts:
    """Costs (samples, resources) of `count` samples, and which of them are known.

    is_lasting: whether what is measured in one epoch holds in the next.
    """

    def __init__(self, count: int, resources: Sequence[str]) -> None:
        self.resources = tuple(resources)
        self.is_lasting = True
        # The kernel gives pages for what has been written to.
        self._costs = np.zeros((count, len(self.resources)), np.int64)
        # A source's own, in place of these until something is measured.
        self._columns: Sequence[np.ndarray] | None = None
        self._known = np.zeros(count, np.bool_)
        self._find_record: FindRecord | None = None
        self._failed: set[int] = set()

    @classmethod
    def from_source(cls, source: Any, resources: Sequence[str]) -> "LoopCosts":
        """Return the costs that a source says of all its samples, or keeps of some."""
        costs = cls(len(source), resources)
        costs._columns = source.known_costs(costs.resources)
        if costs._columns is not None:
            costs._known[:] = True
        else:
            costs._find_record = source.known
        return costs

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._known)

    @property
    def are_all_known(self) -> bool:
        """Return whether nothing has to be measured."""
        return bool(self._known.all())

    def unknown(self, indexes: Int64) -> Mask:
        """Return which of some samples (n,) are not known (n,); looks at what an earlier run kept.

        Raises what reading the kept costs raises.
        """
        missing = ~self._known[indexes]
        if self._find_record is not None and missing.any():
            for index in indexes[missing].tolist():
                record = self._find_record(index)
                if record is not None and all(name in record.cost for name in self.resources):
                    self._costs[index] = [record.cost[name] for name in self.resources]
                    self._known[index] = True
            missing = ~self._known[indexes]
        return missing

    def rows(self, indexes: Int64) -> Int64:
        """Return the costs of samples (n, resources), 0 where they are not known."""
        if self._columns is None:
            rows: Int64 = self._costs[indexes]
            return rows
        return np.stack([column[indexes] for column in self._columns], 1).astype(np.int64)

    def store(self, indexes: Int64, rows: Int64) -> None:
        """Store what samples (n,) were measured to cost (n, resources)."""
        self._own_costs()[indexes] = rows
        self._known[indexes] = True

    def store_failed(self, index: int) -> None:
        """Store that a sample could not be measured: in this epoch it costs nothing."""
        self._own_costs()[index] = 0
        self._known[index] = True
        self._failed.add(index)

    def _own_costs(self) -> Int64:
        if self._columns is not None:
            for place, column in enumerate(self._columns):
                self._costs[:, place] = column
            self._columns = None
        return self._costs

    def begin_epoch(self) -> None:
        """Keep what holds in another epoch, of the same data set."""
        if not self.is_lasting:
            self._known[:] = False
        self._known[list(self._failed)] = False
        self._failed.clear()


# Of the samples for a microbatch without any some may be broken; after so many no good one comes.
SPARES = 100


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of the plan, for all ranks.

    after: the position after it. batch: who has which ordinals. indexes, costs: of its window's
    samples, from ordinal `start` on: in the source (n,), and per resource (n, resources).
    refused: ordinals over budget that are left out, as holes of the first rank's first microbatch.
    spares: indexes of samples for a microbatch without any, in loops that cannot take an empty one;
    the first that can be loaded weighs nothing there.
    """

    number: int
    after: EpochPosition
    batch: GlobalBatch
    start: int
    indexes: Int64
    costs: Int64
    refused: tuple[int, ...] = ()
    spares: tuple[int, ...] = ()

    @property
    def microbatches(self) -> int:
        """The number of microbatches of each rank."""
        return len(self.batch.ranks[0])

    @property
    def samples(self) -> int:
        """The number of samples of all ranks."""
        return sum(len(microbatch.ordinals) for rank in self.batch.ranks for microbatch in rank)

    def ordinals(self, rank: int, microbatch: int) -> tuple[int, ...]:
        """Return the ordinals of a microbatch, ascending."""
        return self.batch.ranks[rank][microbatch].ordinals

    def all_ordinals(self) -> set[int]:
        """Return the ordinals of all ranks, and those that are refused."""
        ordinals = (microbatch.ordinals for rank in self.batch.ranks for microbatch in rank)
        return {*chain.from_iterable(ordinals), *self.refused}

    def find_indexes(self, ordinals: Sequence[int]) -> list[int]:
        """Return where in the source the samples of ordinals are."""
        rows = np.array(ordinals, np.int64) - self.start
        indexes: list[int] = self.indexes[rows].tolist()
        return indexes

    def find_costs(self, ordinals: Sequence[int]) -> Int64:
        """Return the costs of ordinals (n, resources)."""
        return self.costs[np.array(ordinals, np.int64) - self.start]


@dataclass(slots=True)
class PlanFeed:
    """The plan of an epoch, window by window, from a position.

    order: maps an ordinal to an index in the source; name_of: names a sample, by its index.
    left_out: samples that no step has taken, though none was refused. is_over: all is planned.
    """

    epoch: int
    order: Int64
    planner: Planner
    costs: LoopCosts
    at: EpochPosition
    name_of: Callable[[int], str] = str
    left_out: int = 0
    start: int = field(init=False)
    step: int = field(init=False)
    is_over: bool = field(init=False)

    def __post_init__(self) -> None:
        self.start, self.step = self.at.start, self.at.window_step
        self.is_over = self.start >= len(self.order)

    @property
    def end(self) -> int:
        """The ordinal after the last of the next window."""
        return min(self.start + self.planner.window_samples, len(self.order))

    def plan(self) -> Iterator[PlannedStep]:
        """Plan the next window, whose costs are known; return its steps from the position on.

        Raises ValueError where its budgets cannot be met, and for a position that the plan does not
        have.
        """
        begin, end = self.start, self.end
        indexes = self.order[begin:end]
        rows = self.costs.rows(indexes)
        try:
            window = Window(self.epoch, self.step, begin, rows, end == len(self.order))
            planned = self.planner.plan(window)
        except OversizeError as error:
            index = int(self.order[error.ordinal])
            raise ValueError(f"sample {self.name_of(index)!r} {error.reason}") from None
        if self.start == self.at.start:
            microbatches = [len(batch.ranks[0]) for batch in planned.batches]
            self.at.check_in_window(self.step, microbatches, window.costs_digest())
        first, last = self.step, self.step + len(planned.batches)
        after_window = begin + planned.consumed
        self.is_over = (end == len(self.order) and after_window >= end) or not planned.consumed
        self.left_out += planned.left_out
        self.start, self.step = after_window, last
        after = EpochPosition(after_window, last, last, 0, window.costs_digest())
        return self._steps(planned, after, begin, first, rows)

    def _steps(
        self, planned: Planned, after: EpochPosition, begin: int, first: int, rows: Int64
    ) -> Iterator[PlannedStep]:
        """Yield a window's steps from the position on; those of a whole epoch are made one by one.

        after: the position after the window; begin, first: its first ordinal and step.
        """
        indexes = self.order[begin : begin + len(rows)]
        # It follows from epoch and position alone, so that a resumed run has the same batches.
        spares = self.order[np.arange(begin, begin + SPARES) % len(self.order)].tolist()
        refused = planned.oversize if planned.refused else ()
        for batch in planned.batches:
            here = after
            # A run that resumes after this step plans this window again, after the last the next.
            if batch.step + 1 < after.step:
                here = EpochPosition(begin, first, batch.step + 1, 0, after.costs)
            if batch.step >= self.at.step:
                yield PlannedStep(
                    batch.step, here, batch, begin, indexes, rows, refused, tuple(spares)
                )
            refused = ()


# Planned samples that are enough ahead of what is handed out, and steps.
AHEAD_SAMPLES, AHEAD_STEPS = 1024, 2
# Samples measured together: what all ranks tell of them, failures too, is one value of the store.
MOST_MEASURED = 1 << 17

Cost = tuple[int, ...] | FailedSample
OtherRanks = Any  # what `Peers` of loader/peers/exchange.py is
# What a rank says of its part of a block: its costs, of each resource type and bytes, and samples
# without, by ordinal.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[tuple[str, bytes]], dict[int, FailedSample]]).decode


@dataclass(slots=True)
class _Block:
    """Samples that are measured together; open: how many of this rank's part are not measured."""

    part: range
    end: int
    open: int
    is_posted: bool = False


class PlanAhead:
    """What is measured and planned of an epoch, ahead of what is handed out.

    ahead: planned samples, not handed out yet, that are enough. block: samples measured together.
    shares: the ranks that measure, None where this one measures all. group: begins the keys of this
    run. to_measure: ordinals that this rank's workers are to measure, in the order of
    need. failed: the samples that could not be measured, by ordinal.
    """

    def __init__(
        self, feed: PlanFeed, ahead: int, block: int, shares: OtherRanks | None = None,
        group: str = "",
    ) -> None:  # fmt: skip
        self.feed = feed
        self.to_measure: deque[int] = deque()
        self.failed: dict[int, FailedSample] = {}
        self._ahead = ahead
        self._size = block
        self._shares = shares
        self._group = group
        self._steps: Iterator[PlannedStep] = iter(())
        self._next: PlannedStep | None = None
        # Steps that are planned and not handed out, as far as that is known, and their samples.
        self._waiting: deque[tuple[int, int]] = deque()
        self._planned = 0
        self._blocks: deque[_Block] = deque()
        self._open: set[int] = set()
        # What is asked for, and what is known of all ranks' parts, ends at these ordinals.
        self._asked = self._known = feed.start
        if shares is None and feed.costs.are_all_known:
            self._asked = self._known = len(feed.order)

    @property
    def is_over(self) -> bool:
        """Return whether all steps have been returned."""
        return self.feed.is_over and self._next is None

    @property
    def awaits_ranks(self) -> bool:
        """Return whether costs of others are missing."""
        return self._shares is not None and bool(self._blocks) and self._blocks[0].is_posted

    @property
    def lost_reason(self) -> str:
        """Return why the costs that are awaited will never come; "" while they may."""
        if self._shares is None or not self.awaits_ranks or not self._blocks:
            return ""
        return str(self._shares.explain_loss(self._key(self._blocks[0])))

    @property
    def missing(self) -> str:
        """Return in a few words what the next window waits for; "" for nothing."""
        if self._known >= self.feed.end:
            return ""
        if self.awaits_ranks and self._shares is not None:
            missing = self._shares.describe_missing(self._key(self._blocks[0]))
            return f"costs that other ranks measure: {missing or 'they are on their way'}"
        whole = self.feed.end - self.feed.start
        return f"costs of the next window of {whole} samples: {len(self._open)} are measured here"

    def hand_out(self, step: int) -> None:
        """Take note that all steps before this one were handed out."""
        while self._waiting and self._waiting[0][0] < step:
            self._planned -= self._waiting.popleft()[1]

    def measure_again(self) -> None:
        """Have all measured that is not yet: what was being measured has been lost."""
        self.to_measure = deque(sorted(self._open))

    def store(self, ordinals: Sequence[int], costs: Sequence[Cost]) -> None:
        """Store what this rank's workers have measured."""
        for ordinal, cost in zip(ordinals, costs, strict=True):
            if ordinal not in self._open:
                continue
            self._open.discard(ordinal)
            self._blocks[(ordinal - self._known) // self._size].open -= 1
            if isinstance(cost, FailedSample):
                self._store_failed(ordinal, cost)
            else:
                self.feed.costs.store(self.feed.order[[ordinal]], np.array([cost], np.int64))

    def steps(self) -> Iterator[PlannedStep]:
        """Yield the steps that can be planned now and are wanted; ask for the costs after them.

        Raises ValueError where a step cannot be planned within its budgets.
        """
        while True:
            self._ask()
            self._learn()
            if self._planned >= self._ahead:
                return
            step = self._next_step()
            if step is None:
                return
            samples = step.samples
            self._waiting.append((step.number, samples))
            self._planned += samples
            yield step

    def _next_step(self) -> PlannedStep | None:
        """Return the next step, None if its window cannot be planned yet, or there is none."""
        while self._next is None:
            if self.feed.is_over or self._known < self.feed.end:
                return None
            self._steps = self.feed.plan()
            self._next = next(self._steps, None)
        step, self._next = self._next, next(self._steps, None)
        return step

    def _ask(self) -> None:
        """Ask for the costs of the next window, and of as many samples beyond it as are planned."""
        feed = self.feed
        # The first window alone, so that workers begin with its microbatches soon.
        beyond = 0 if feed.start == feed.at.start else max(self._size, self._ahead)
        until = min(feed.end + beyond, len(feed.order))
        while self._asked < until and not feed.is_over:
            end = min(self._asked + self._size, len(feed.order))
            part = self._part(self._asked, end)
            missing = feed.costs.unknown(feed.order[part.start : part.stop])
            ordinals = (part.start + np.flatnonzero(missing)).tolist()
            self._open.update(ordinals)
            self.to_measure.extend(ordinals)
            self._blocks.append(_Block(part, end, len(ordinals)))
            self._asked = end

    def _learn(self) -> None:
        """Find out up to which ordinal all costs are known."""
        while self._blocks:
            block = self._blocks[0]
            if self._shares is None:
                if block.open:
                    return
            elif not self._exchange(self._shares):
                return
            self._known = block.end
            self._blocks.popleft()

    def _exchange(self, shares: OtherRanks) -> bool:
        """Post what is measured of the blocks; return whether all of the first one is known."""
        for block in self._blocks:
            if not block.open and not block.is_posted:
                shares.post(self._key(block), self._packed(block.part))
                block.is_posted = True
        first = self._blocks[0]
        parts = shares.gather(self._key(first)) if first.is_posted else None
        if parts is None:
            return False
        for rank, packed in enumerate(parts):
            if rank != shares.rank:
                self._unpack(self._part(self._known, first.end, rank), packed)
        return True

    def _key(self, block: _Block) -> str:
        return f"{self._group}/costs/{block.end}"

    def _packed(self, part: range) -> bytes:
        rows = self.feed.costs.rows(self.feed.order[part.start : part.stop])
        columns = [_pack_column(column) for column in rows.T]
        failed = {
            ordinal: self.failed[ordinal]._replace(raised=None)
            for ordinal in part
            if ordinal in self.failed
        }
        return _encode((columns, failed))

    def _unpack(self, part: range, packed: bytes) -> None:
        """Store another rank's part of a block."""
        columns, failed = _decode(packed)
        rows = [_unpack_column(kind, column) for kind, column in columns]
        self.feed.costs.store(self.feed.order[part.start : part.stop], np.stack(rows, axis=1))
        for ordinal, why in failed.items():
            self._store_failed(ordinal, why)

    def _part(self, begin: int, end: int, rank: int | None = None) -> range:
        """Return the ordinals of a block that a rank measures, by default this one."""
        if self._shares is None:
            return range(begin, end)
        rank = self._shares.rank if rank is None else rank
        ranks, count = self._shares.ranks, end - begin
        return range(begin + rank * count // ranks, begin + (rank + 1) * count // ranks)

    def _store_failed(self, ordinal: int, why: FailedSample) -> None:
        self.failed[ordinal] = why
        self.feed.costs.store_failed(int(self.feed.order[ordinal]))


def _pack_column(column: Int64) -> tuple[str, bytes]:
    """Return whole numbers as the smallest type that holds them: all first bytes, all second ones.

    So what is alike is together, which the ranks' values are compressed for.
    """
    kind = np.min_scalar_type(int(column.max(initial=0)))
    return kind.str, column.astype(kind).view(np.uint8).reshape(-1, kind.itemsize).T.tobytes()


def _unpack_column(kind: str, packed: bytes) -> Int64:
    parts = np.frombuffer(packed, np.uint8).reshape(np.dtype(kind).itemsize, -1)
    return np.ascontiguousarray(parts.T).view(kind)[:, 0].astype(np.int64)
