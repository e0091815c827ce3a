"""The bubbles of a step, kernel by kernel: when each pipeline rank's GPUs could do other work.

A rank's step is cut into stretches of three kinds. FREE: nothing runs, a guest may compute or
communicate. COMMUNICATING: the host's tensor-parallel collective, a guest may compute. COMPUTING:
a guest may only communicate. The data-parallel all-gather and reduce-scatter are FREE: they use
the network, the encoders' collectives the links inside the machine.

From any program: its timeline says when passes run, the model's layers what is inside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..ir.kinds import BACKWARD
from ..ir.program import NO_MICROBATCH, Pass, Program
from ..simulation.timeline import Timeline
from .setup import Kernel

Ints = NDArray[np.int64]
FREE, COMMUNICATING, COMPUTING = 0, 1, 2
GATHER, SCATTER = "UNSHARD", "REDUCE_GRAD"


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """A rank's step, cut without gaps into stretches of time."""

    start: Ints
    end: Ints
    kind: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """A step's stretches on every rank, and the dependency points.

    `need_ns[i]`: when the language model wants the i-th microbatch's encoder output (F_i);
    `gradient_ns[i]`: when it has that microbatch's gradient (B_i); both on `first_rank`.
    """

    ranks: tuple[Stretches, ...]
    need_ns: Ints
    gradient_ns: Ints
    step_ns: int
    first_rank: int = 0

    def free_ns(self, kind: int = FREE) -> tuple[int, ...]:
        """Return each rank's time in stretches of one kind, in nanoseconds."""
        return tuple(int((r.end - r.start)[r.kind == kind].sum()) for r in self.ranks)


def with_collectives(program: Program) -> Program:
    """Return the program with an all-gather before and a reduce-scatter after each rank's passes.

    Both are the data-parallel collectives of the language model.

    >>> from counterpoise.sched import schedule
    >>> print(with_collectives(schedule("gpipe", ranks=1, microbatches=1)))
    schedule: gpipe
    placement: 0
    microbatches: 1
    0: 0UNSHARD     0F0          0B0          0REDUCE_GRAD
    """
    rows = []
    for rank, row in enumerate(program.ranks):
        stage = program.stages_of(rank)[0]
        rows.append((Pass(stage, GATHER), *row, Pass(stage, SCATTER)))
    return replace(program, ranks=tuple(rows))


def find_gaps(timeline: Timeline, inside: Mapping[str, Sequence[Kernel]]) -> Gaps:
    """Return the gaps of a timeline. `inside[kind]`: the kernels of a pass of that kind, in order.

    Where a pass takes longer or shorter than its kernels, they are scaled to it; a pass of a kind
    that is not in `inside` computes all the time. Raises ValueError if no microbatch enters at
    stage 0, or gradients come back in another order than forwards entered.
    """
    ranks = tuple(_stretches(timeline, rank, inside) for rank in range(len(timeline.ranks)))
    rank = timeline.placement[0]
    need, gradient = {}, {}
    for slot in timeline.ranks[rank]:
        pass_ = slot.what
        if pass_.stage == 0 and pass_.microbatch != NO_MICROBATCH:
            if pass_.kind == "F":
                need[pass_.microbatch] = slot.start_ns
            elif pass_.kind in BACKWARD:
                gradient[pass_.microbatch] = slot.end_ns
    # Without a forward at stage 0 nothing says when encoder output is needed.
    if not need:
        raise ValueError("the timeline has no forward at stage 0, so no encoder output is needed")
    gradient = dict.fromkeys(need, timeline.makespan_ns) | gradient
    order = sorted(need, key=need.__getitem__)
    back = [gradient[microbatch] for microbatch in order]
    if back != sorted(back):
        raise ValueError("gradients come in another order than forwards; use a first-in schedule")
    points = np.array([need[m] for m in order], np.int64), np.array(back, np.int64)
    return Gaps(ranks, *points, timeline.makespan_ns, rank)


def _stretches(timeline: Timeline, rank: int, inside: Mapping[str, Sequence[Kernel]]) -> Stretches:
    row = timeline.ranks[rank]
    names = sorted({slot.what.kind for slot in row} - {GATHER, SCATTER})
    kinds = np.array([slot.what.kind for slot in row])
    begin = np.array([slot.start_ns for slot in row], np.int64)
    finish = np.array([slot.end_ns for slot in row], np.int64)
    parts: list[tuple[Ints, ...]] = []
    # All passes of a kind at once: their kernels' ends as fractions of the pass, scaled to it.
    for name in names:
        nodes = np.flatnonzero((kinds == name) & (finish > begin))
        kernels = inside.get(name) or (Kernel(name, "compute", 1),)
        until = np.concatenate(([0], np.cumsum([kernel.ns for kernel in kernels]))).astype(np.int64)
        codes = [COMPUTING if kernel.resource == "compute" else COMMUNICATING for kernel in kernels]
        length = (finish - begin)[nodes, None]
        at = begin[nodes, None] + _scaled(until, length)  # (passes, kernels + 1)
        parts.append(
            (at[:, :-1].ravel(), at[:, 1:].ravel(), np.tile(np.array(codes, np.int64), len(nodes)))
        )
    start, end, kind = (
        np.concatenate([part[i] for part in parts] or [np.empty(0, np.int64)]) for i in range(3)
    )
    order = np.argsort(start, kind="stable")
    return fill_holes(start[order], end[order], kind[order], timeline.makespan_ns)


def _scaled(until: Ints, length: Ints) -> Ints:
    """Return until x length / total; whole parts and remainders apart, so nothing overflows."""
    total = int(until[-1])
    whole, remainder = np.divmod(length, total)
    return until * whole + until * remainder // total


def fill_holes(start: Ints, end: Ints, kind: Ints, step_ns: int) -> Stretches:
    """Add the FREE stretches between, before and after; both ends always get one, if empty."""
    before = np.concatenate(([0], end))
    after = np.concatenate((start, [step_ns]))
    keep = after > before
    keep[0] = keep[-1] = True
    place = np.concatenate((start, before[keep]))
    order = np.argsort(place * 2 + (np.arange(len(place)) < len(start)), kind="stable")
    return Stretches(
        place[order],
        np.concatenate((end, after[keep]))[order],
        np.concatenate((kind, np.full(int(keep.sum()), FREE, np.int64)))[order],
    )
