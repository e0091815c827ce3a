"""Decides what is measured and planned ahead of need: events in, results out, no thread, no clock.

An epoch's windows are planned one after the other; a window can be planned when all of its costs
are known. What is not known is measured in *blocks* of a step's samples at most, whatever windows
the plan makes: each rank measures its part of a block, and tells the others when it has all of it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..planning.kernels.arrays import Int64
from .feed import PlanFeed, PlannedStep
from .tasks import FailedSample

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
        self,
        feed: PlanFeed,
        ahead: int,
        block: int,
        shares: OtherRanks | None = None,
        group: str = "",
    ) -> None:
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
    def why_lost(self) -> str:
        """Return why the costs that are awaited will never come; "" while they may."""
        if self._shares is None or not self.awaits_ranks or not self._blocks:
            return ""
        return str(self._shares.why_lost(self._key(self._blocks[0])))

    @property
    def waits_for(self) -> str:
        """Return in a few words what the next window waits for; "" for nothing."""
        if self._known >= self.feed.end:
            return ""
        if self.awaits_ranks and self._shares is not None:
            missing = self._shares.why_missing(self._key(self._blocks[0]))
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
            self._block_of(ordinal).open -= 1
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
            self._waiting.append((step.number, step.samples))
            self._planned += step.samples
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
        wanted = min(feed.end + beyond, len(feed.order))
        while self._asked < wanted and not feed.is_over:
            end = min(self._asked + self._size, len(feed.order))
            part = self._part(self._asked, end)
            ordinals = self._unknown_of(part)
            self._open.update(ordinals)
            self.to_measure.extend(ordinals)
            self._blocks.append(_Block(part, end, len(ordinals)))
            self._asked = end

    def _unknown_of(self, part: range) -> list[int]:
        """Return the ordinals whose costs are not known."""
        missing = self.feed.costs.unknown(self.feed.order[part.start : part.stop])
        found: list[int] = (part.start + np.flatnonzero(missing)).tolist()
        return found

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
        own = self._shares.rank if rank is None else rank
        ranks, count = self._shares.ranks, end - begin
        return range(begin + own * count // ranks, begin + (own + 1) * count // ranks)

    def _block_of(self, ordinal: int) -> _Block:
        first = self._known
        return self._blocks[(ordinal - first) // self._size]

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
