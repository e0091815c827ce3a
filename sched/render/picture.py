"""Select what a picture of a timeline shows: its rows, kinds and chunks, in any format."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from ..ir.kinds import is_compute, is_kind, is_staged, kind
from ..ir.program import NO_MICROBATCH, Pass, format_pass
from ..simulation.timeline import Slot, Timeline
from .palette import PAINTS

# What the vocabulary passes' barriers do.
COLLECTIVES = {
    "CX": "broadcast", "CM": "maximum", "CS": "sums", "CG": "gradient sum", "CI": "embedding sum",
    "CJ": "embedding gradient",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a rank, or the lane of a communicator."""

    label: str
    slots: tuple[Slot, ...]
    lane: bool = False


def rows(timeline: Timeline) -> tuple[Row, ...]:
    """Return the ranks' rows, then the lanes of communicators that take time.

    Sends, receives and entries into collectives that take no time of the rank are left out.
    """
    ranks = []
    for rank, row in enumerate(timeline.ranks):
        seen = (s for s in row if s.end_ns > s.start_ns or is_compute(s.what.kind))
        ranks.append(Row(f"rank {rank}", tuple(seen)))
    lanes = (
        Row(name, slots, lane=True)
        for name, slots in sorted(timeline.lanes.items())
        if any(slot.end_ns > slot.start_ns for slot in slots)
    )
    return (*ranks, *lanes)


def kind_names(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Return the kinds of passes that are drawn, in the palette's order, then by name."""
    kinds = {slot.what.kind for t in timelines for row in rows(t) for slot in row.slots}
    order = {name: place for place, name in enumerate(PAINTS)}
    return tuple(sorted(kinds, key=lambda name: (order.get(name, len(order)), name)))


def chunks(timeline: Timeline) -> int:
    """Return the largest number of chunks on a rank, at least 1."""
    return max(map(timeline.placement.count, timeline.placement), default=1)


def chunk_number(pass_: Pass, placement: tuple[int, ...]) -> int:
    """Return the number of a pass's chunk on its rank; 0 for work that is not divided by stages.

    >>> chunk_number(Pass(3, "F", 0), (0, 1, 1, 0))
    1
    """
    if not is_staged(pass_.kind) or pass_.stage >= len(placement):
        return 0
    return placement[: pass_.stage].count(placement[pass_.stage])


def label(slot: Slot, bare: bool) -> str:
    """Return the name of a pass; bare: without its stage, which is meaningless on a lane.

    >>> label(Slot(Pass(2, "F", 3), 0, 1), bare=True)
    'F3'
    """
    pass_ = slot.what
    if not bare:
        return format_pass(pass_)
    return pass_.kind + ("" if pass_.microbatch == NO_MICROBATCH else str(pass_.microbatch))


def word(name: str) -> str:
    """Return the words for a kind in a legend.

    >>> word("W"), word("CX"), word("XY")
    ('weight gradient', 'broadcast', 'collective')
    """
    return kind(name).description if is_kind(name) else COLLECTIVES.get(name, "collective")


def nice_step(rough: float) -> int:
    """Return the smallest of 1, 2, 5, 10, ... nanoseconds that is `rough` or more.

    >>> nice_step(3), nice_step(60), nice_step(0)
    (5, 100, 1)
    """
    power = 10 ** max(0, floor(log10(max(rough, 1))))
    return int(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough))
