"""What a picture of a timeline holds, whatever draws it: rows, kinds, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from .kinds import is_kind, kind
from .palette import PAINTS
from .passes import NO_MICROBATCH, Pass, format_pass
from .timeline import Slot, Timeline


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a rank, or the lane of a communicator."""

    label: str
    slots: tuple[Slot, ...]
    lane: bool = False


def rows(timeline: Timeline) -> tuple[Row, ...]:
    """Return the ranks' rows, then the lanes of communicators that take time."""
    ranks = (Row(f"rank {rank}", slots) for rank, slots in enumerate(timeline.ranks))
    lanes = (
        Row(name, slots, lane=True)
        for name, slots in sorted(timeline.lanes.items())
        if any(slot.end_ns > slot.start_ns for slot in slots)
    )
    return (*ranks, *lanes)


def kind_names(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Return the kinds that are drawn, in the order of the palette, then of appearance."""
    found = dict.fromkeys(s.what.kind for t in timelines for row in rows(t) for s in row.slots)
    order = {name: place for place, name in enumerate(PAINTS)}
    return tuple(sorted(found, key=lambda name: order.get(name, len(order))))


def chunks(timeline: Timeline) -> int:
    """Return how many chunks the fullest rank holds, at least 1."""
    return max(map(timeline.placement.count, timeline.placement), default=1)


def is_staged(name: str) -> bool:
    """Whether passes of this kind belong to a stage of the model rather than to a rank."""
    return is_kind(name) and kind(name).scope == "stage"


def chunk_of(what: Pass, placement: tuple[int, ...]) -> int:
    """Return which chunk of its rank a pass belongs to; 0 for work that is not cut by stages.

    >>> chunk_of(Pass(3, "F", 0), (0, 1, 1, 0))
    1
    """
    if not is_staged(what.kind) or what.stage >= len(placement):
        return 0
    return placement[: what.stage].count(placement[what.stage])


def label(slot: Slot, lane: bool) -> str:
    """Return the name of a pass in a picture; on a lane its stage means nothing and is left out.

    >>> label(Slot(Pass(0, "CS", 3), 0, 1), lane=True)
    'CS3'
    """
    if not lane:
        return format_pass(slot.what)
    return slot.what.kind + (
        "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
    )
