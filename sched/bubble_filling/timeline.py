"""Conversion of filled schedules to timelines, to render, export and compare them.

A rank's row shows its compute stream: the language model's passes, cut where encoder
kernels run inside them, and the encoder's forwards (EF) and backwards (EB), joined where they
touch. Encoder collectives, beside the language model's computation, are left out. With encoder
pipelines narrower than the language model's, one copy is shown.
"""

from collections.abc import Iterator

import numpy as np

from ..ir.program import Pass
from ..simulation.measured import row_bubbles
from ..simulation.timeline import Curve, Slot, Timeline
from .encoder_plans import Host
from .gaps import COMMUNICATING, FREE, GATHER, SCATTER, Gaps, Ints
from .instance import FilledSchedule


def fill_timeline(host: Host, filled: FilledSchedule, encoder_bytes: int = 0) -> Timeline:
    """Return the timeline of a filled schedule, exposed encoder time included.

    `encoder_bytes`: what the encoders hold at most, counted throughout.
    """
    shift, makespan = filled.before_ns, filled.step_ns
    rows = []
    for rank, row in enumerate(host.timeline.ranks):
        guests = sorted(_guests(filled, rank), key=lambda slot: slot.start_ns)
        merged = _merged(row, guests)
        rows.append(tuple(Slot(s.what, s.start_ns + shift, s.end_ns + shift) for s in merged))
    return Timeline(
        name=f"{host.timeline.name} with encoders",
        placement=host.timeline.placement,
        ranks=tuple(rows),
        lanes={},
        makespan_ns=makespan,
        bubbles=tuple(row_bubbles(row, makespan) for row in rows),
        memory=tuple(_later(curve, shift, encoder_bytes) for curve in host.timeline.memory),
    )


def _guests(filled: FilledSchedule, rank: int) -> Iterator[Slot]:
    """Yield the encoders' computation on a rank, neighbours of one microbatch joined."""
    problem = filled.problem
    for p in filled.pipelines:
        if p.copy == 0 and rank in p.ranks:
            stage = p.ranks.index(rank)
            for kind, starts, ends, work in (
                ("EF", p.forward, p.forward_end, problem.forward),
                ("EB", p.backward, p.backward_end, problem.backward),
            ):
                keep = work.resource == 0
                if starts.size:
                    times = starts[:, stage, keep], ends[:, stage, keep]
                    yield from _joined(rank, kind, p.microbatches, *times)


def _joined(rank: int, kind: str, order: tuple[int, ...], begin: Ints, end: Ints) -> Iterator[Slot]:
    for at, microbatch in enumerate(order):
        breaks = np.flatnonzero(begin[at, 1:] > end[at, :-1]) + 1
        first = np.concatenate(([0], breaks)).astype(np.int64)
        last = np.concatenate((breaks - 1, [begin.shape[1] - 1])).astype(np.int64)
        pass_ = Pass(rank, kind, microbatch)
        times = zip(begin[at, first].tolist(), end[at, last].tolist(), strict=True)
        yield from (Slot(pass_, a, b) for a, b in times)


def _merged(host: tuple[Slot, ...], guests: list[Slot]) -> Iterator[Slot]:
    """Yield both in order of time, the host's passes cut around its guests."""
    waiting = guests[::-1]
    for slot in host:
        at = slot.start_ns
        while waiting and waiting[-1].start_ns < slot.end_ns:
            guest = waiting.pop()
            if guest.start_ns > at:
                yield Slot(slot.what, at, guest.start_ns)
            yield guest
            at = max(at, guest.end_ns)
        if at < slot.end_ns:
            yield Slot(slot.what, at, slot.end_ns)
    yield from waiting[::-1]


def _later(curve: Curve, shift: int, more: int) -> Curve:
    moved = tuple((at + shift, held + more) for at, held in curve)
    return ((0, moved[0][1]), *moved) if shift and moved else moved


def bubble_causes(gaps: Gaps, timeline: Timeline) -> tuple[dict[str, int], ...]:
    """Return the nanoseconds in which each rank does not compute, by cause.

    `gather_ns`, `scatter_ns`: data-parallel collectives. `warmup_ns`, `cooldown_ns`: before the
    first and after the last pass. `steady_ns`: between passes. `tensor_ns`: tensor-parallel
    collectives, the only ones where a guest may compute but not communicate.
    """
    result = []
    for row, stretches in zip(timeline.ranks, gaps.ranks, strict=True):
        length = stretches.end - stretches.start
        gather, scatter = (
            sum(slot.end_ns - slot.start_ns for slot in row if slot.what.kind == kind)
            for kind in (GATHER, SCATTER)
        )
        free = length * (stretches.kind == FREE)
        last = 0 if len(length) == 1 else int(free[-1])
        causes = {
            "gather_ns": gather,
            "warmup_ns": max(0, int(free[0]) - gather),
            "steady_ns": int(np.sum(free[1:-1])),
            "tensor_ns": int(length[stretches.kind == COMMUNICATING].sum()),
            "cooldown_ns": max(0, last - scatter),
            "scatter_ns": scatter,
        }
        result.append(causes)
    return tuple(result)
