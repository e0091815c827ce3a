"""The bubbles of a step by cause: a table of the time that filling can use."""

from dataclasses import asdict, dataclass

import numpy as np

from ...simulation.timeline import Timeline
from ..problem.gaps import COMMUNICATING, FREE, Gaps


@dataclass(frozen=True, slots=True)
class Causes:
    """Nanoseconds in which a rank does not compute, by cause.

    `gather`, `scatter`: data-parallel collectives. `warmup`, `cooldown`: before the first and after
    the last pass. `steady`: between passes. `tensor`: tensor-parallel collectives, the only ones
    where a guest may compute but not communicate.
    """

    gather_ns: int
    warmup_ns: int
    steady_ns: int
    tensor_ns: int
    cooldown_ns: int
    scatter_ns: int

    @property
    def total_ns(self) -> int:
        """The sum of all causes."""
        return sum(asdict(self).values())


def bubble_causes(gaps: Gaps, timeline: Timeline | None = None) -> tuple[Causes, ...]:
    """Return every rank's bubbles by cause.

    Without the timeline (a measured trace), data-parallel collectives count as warm-up and
    cool-down.
    """
    result = []
    rows = timeline.ranks if timeline else ((),) * len(gaps.ranks)
    for row, one in zip(rows, gaps.ranks, strict=True):
        length = one.end - one.start
        took = {
            kind: sum(s.end_ns - s.start_ns for s in row if s.what.kind == kind)
            for kind in ("UNSHARD", "REDUCE_GRAD")
        }
        free = length * (one.kind == FREE)
        single = len(length) == 1
        last = 0 if single else int(free[-1])
        result.append(
            Causes(
                gather_ns=took["UNSHARD"],
                warmup_ns=max(0, int(free[0]) - took["UNSHARD"]),
                steady_ns=int(np.sum(free[1:-1])),
                tensor_ns=int(length[one.kind == COMMUNICATING].sum()),
                cooldown_ns=max(0, last - took["REDUCE_GRAD"]),
                scatter_ns=took["REDUCE_GRAD"],
            )
        )
    return tuple(result)
