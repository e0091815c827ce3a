"""Plans windows once for all ranks of a host: one process plans, the others map what it has made.

All would make the same plan of the same costs; to make it takes about 30 times as long as to read
it. Where the process that plans ends, or cannot plan a window, the others plan it themselves.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.planner import WHOLE_EPOCH
from ...balancer.planning.problem.config import GlobalBatch, Microbatch, Planned, Window
from .feed import FeedPlanner

if TYPE_CHECKING:
    from ..peers.exchange import Peers

# consumed, left_out, refused, oversize samples, steps
_HEAD = struct.Struct("<qqqqq")
# number, ranks, microbatches of each
_STEP = struct.Struct("<qqq")


class SharedPlanner:
    """A FeedPlanner of a host. group: begins the keys of a run."""

    def __init__(self, planner: FeedPlanner, host: "Peers", group: str) -> None:
        self._planner = planner
        self._host = host
        self._group = group

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned | None:
        """Return the steps of a window; None if the process that plans has not come so far."""
        key, host = f"{self._group}/plan/{window.start}", self._host
        if not host.is_planner:
            mapped = host.published(key)
            if mapped is None:
                return self._planner.plan(window) if host.planner_ended() else None
            if len(mapped) > 1:
                return unpack_plan(mapped, window.start)
            return self._planner.plan(window)
        try:
            planned = self._planner.plan(window)
        except Exception:
            host.publish(key, b"-")  # they find out by themselves
            raise
        if planned is not None:
            host.publish(key, pack_plan(planned, window.start))
        return planned


def shared_planner(planner: FeedPlanner, host: "Peers | None", group: str) -> FeedPlanner:
    """Return what plans for a host; where there is one rank, or an epoch is one window, itself."""
    is_shared = host is not None and host.shares_host and planner.window_samples < WHOLE_EPOCH
    return SharedPlanner(planner, host, group) if host is not None and is_shared else planner


def pack_plan(planned: Planned, start: int) -> bytes:
    """Return a plan as bytes; `start` is its window's first ordinal."""
    head = _HEAD.pack(
        planned.consumed, planned.left_out, planned.refused, len(planned.oversize),
        len(planned.batches),
    )  # fmt: skip
    parts = [head, _packed(planned.oversize, start)]
    for batch in planned.batches:
        cells = [microbatch.ordinals for rank in batch.ranks for microbatch in rank]
        parts.append(_STEP.pack(batch.step, len(batch.ranks), len(batch.ranks[0])))
        parts.append(_packed([len(each) for each in cells], 0))
        parts.append(_packed([each for cell in cells for each in cell], start))
    return b"".join(parts)


def unpack_plan(packed: memoryview, start: int) -> Planned:
    """Return the plan in some bytes."""
    consumed, left_out, refused, oversize, steps = _HEAD.unpack_from(packed)
    at = _HEAD.size
    over = _unpacked(packed, at, oversize) + start
    at += 4 * oversize
    batches = []
    for _ in range(steps):
        number, ranks, microbatches = _STEP.unpack_from(packed, at)
        at += _STEP.size
        sizes = _unpacked(packed, at, ranks * microbatches)
        at += 4 * len(sizes)
        count = int(sizes.sum())
        ordinals = (_unpacked(packed, at, count) + start).tolist()
        at += 4 * count
        cells = _cut(ordinals, sizes.tolist())
        own = [tuple([next(cells) for _ in range(microbatches)]) for _ in range(ranks)]
        batches.append(GlobalBatch(number, tuple(own)))
    return Planned(tuple(batches), consumed, tuple(over.tolist()), bool(refused), left_out)


def _packed(numbers: Sequence[int], start: int) -> bytes:
    return (np.array(numbers, np.int64) - start).astype("<u4").tobytes()


def _unpacked(packed: memoryview, at: int, count: int) -> Int64:
    return np.frombuffer(packed, "<u4", count, at).astype(np.int64)


def _cut(ordinals: Sequence[int], sizes: Sequence[int]) -> Iterator[Microbatch]:
    at = 0
    for size in sizes:
        yield Microbatch(tuple(ordinals[at : at + size]))
        at += size
