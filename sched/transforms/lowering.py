"""Lowering: the communication of a program made explicit.

Messages: after a pass whose result another rank needs, its rank gets a SEND and, in the same
step, the other rank its RECV: *the sender places both*. So the receives of a pair of ranks stand
in the order of the sends, which is all that tagless transfers (NCCL) can match by. The idea is
torch's (`_add_send_recv`). A receive is posted when the message is on its way; only the pass that
uses it waits for it.

Collectives: every rank enters a barrier with a pass of the barrier's name; it does not wait there,
the passes that need the result do. Each barrier class has a communicator of its own: on a single
one the ranks of Algorithm 1 would enter in different orders and stop, since the last rank
broadcasts with its forward and the others come when their vocabulary pass needs it. Where a rank
makes nothing for a barrier it enters with whatever it does when the barrier starts, so that nobody
waits for it. A barrier that follows another one (Algorithm 2's reduction follows the statistics of
the softmax) needs the ranks in between, to rescale: a continuation C, in front of the first pass
that starts when the statistics are there. Both places are read off a simulated timeline, whose
order of events they keep, so they cannot close a circle.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import replace

import numpy as np

from ..ir.kinds import BACKWARD
from ..ir.passes import Pass
from ..ir.program import Barrier, Program
from ..simulation.costs import Costs, unit_costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Slot, Timeline


def lower(program: Program, costs: Costs | None = None, *, continuations: bool = True) -> Program:
    """The program with sends, receives, collectives and continuations.

    `costs`: what the places of late collectives are found with; only their proportions matter.
    `continuations`: whether a rank continues a barrier between its passes, with C; without them
    the second collective follows by itself, for runtimes that rescale on the collectives' stream.
    Raises ValueError if the program has messages already or cannot run to its end.

    >>> from counterpoise.sched import schedule
    >>> for row in lower(schedule("1f1b", ranks=2, microbatches=1)).ranks:
    ...     print(*row)
    0F0 0SEND_F0 0RECV_B0 0B0
    1RECV_F0 1F0 1B0 1SEND_B0
    """
    if any("SEND" in item.kind or "RECV" in item.kind for row in program.ranks for item in row):
        raise ValueError("the program has sends and receives already; lower it only once")
    if program.barriers:
        timeline = simulate(program, _positive(costs))
        program = _collectives(program, timeline, continuations)
    return _messages(program)


def _positive(costs: Costs | None) -> Costs:
    """Costs in which every pass takes time, so that no two events of a rank coincide."""
    costs = costs or unit_costs(10, 20, 3)
    return replace(
        costs, pass_ns={k: np.maximum(np.asarray(v), 1) for k, v in costs.pass_ns.items()}
    )


def _collectives(program: Program, timeline: Timeline, continuations: bool) -> Program:
    rows = tuple(
        _enter(rank, slots, program, timeline, continuations)
        for rank, slots in enumerate(timeline.ranks)
    )
    if not continuations:
        return replace(program, ranks=rows)
    held = {barrier.after for barrier in program.barriers if barrier.source == "barrier"}
    barriers = tuple(
        replace(b, before=(*b.before, ("every", "C"))) if b.name in held else b
        for b in program.barriers
    )
    return replace(program, ranks=rows, barriers=barriers)


def _enter(
    rank: int,
    slots: tuple[Slot, ...],
    program: Program,
    timeline: Timeline,
    continuations: bool,
) -> tuple[Pass, ...]:
    """The rank's row with its collectives: some behind its passes, some by time."""
    front: dict[int, list[Pass]] = {}
    starts, ends = [slot.start_ns for slot in slots], [slot.end_ns for slot in slots]
    for barrier in program.barriers:
        if barrier.source == "barrier":
            for event in timeline.lanes[barrier.after] if continuations else ():
                at = bisect_left(starts, event.end_ns)
                pair = [Pass(rank, "C", event.what.microbatch)]
                pair.append(Pass(rank, barrier.name, event.what.microbatch))
                front.setdefault(at, []).extend(pair)
        elif barrier.source != "every" and rank != _source(barrier, program):
            for event in timeline.lanes[barrier.name]:
                at = bisect_left(ends, event.start_ns)
                front.setdefault(at, []).append(Pass(rank, barrier.name, event.what.microbatch))
    out = []
    for at, item in enumerate(slot.what for slot in slots):
        out += [*front.get(at, ()), item]
        out += [
            Pass(rank, barrier.name, item.microbatch)
            for barrier in program.barriers
            if _makes(barrier, item, program)
        ]
    return (*out, *front.get(len(slots), ()))


def _source(barrier: Barrier, program: Program) -> int:
    """The rank that makes what a barrier from the first or last stage carries."""
    return program.placement[0 if barrier.source == "first" else -1]


def _makes(barrier: Barrier, item: Pass, program: Program) -> bool:
    """Whether the rank enters the barrier behind this pass."""
    if item.kind != barrier.after or barrier.source == "barrier":
        return False
    ends = {"first": 0, "last": program.stages - 1}
    return barrier.source == "every" or item.stage == ends[barrier.source]


def _messages(program: Program) -> Program:
    """Walk the program, a rank as far as it gets, and place each SEND with its RECV."""
    rows: list[list[Pass]] = [[] for _ in program.ranks]
    placed: set[Pass] = set()
    left = [deque(row) for row in program.ranks]
    while any(left):
        moved = False
        for rank, row in enumerate(left):
            if row and _ready(row[0], placed, program):
                item = row.popleft()
                placed.add(item)
                rows[rank].append(item)
                if pair := _message(item, program):
                    rows[rank].append(pair[0])
                    rows[program.placement[pair[1].stage]].append(pair[1])
                moved = True
        if not moved:
            heads = " ".join(str(row[0]) for row in left if row)
            raise ValueError(f"the program stops at {heads}; check it")
    return replace(program, ranks=tuple(map(tuple, rows)))


def _ready(item: Pass, placed: set[Pass], program: Program) -> bool:
    if item.kind == "F" and item.stage > 0:
        return Pass(item.stage - 1, "F", item.microbatch) in placed
    if item.kind in BACKWARD and item.stage < program.stages - 1:
        return any(Pass(item.stage + 1, kind, item.microbatch) in placed for kind in BACKWARD)
    return True


def _message(item: Pass, program: Program) -> tuple[Pass, Pass] | None:
    """The SEND behind a pass and the RECV that it causes, if its result leaves the rank."""
    step = 1 if item.kind == "F" else -1 if item.kind in BACKWARD else 0
    peer = item.stage + step
    if not step or not 0 <= peer < program.stages:
        return None
    if program.placement[peer] == program.placement[item.stage]:
        return None
    name = "F" if step > 0 else "B"
    return Pass(item.stage, f"SEND_{name}", item.microbatch), Pass(
        peer, f"RECV_{name}", item.microbatch
    )
