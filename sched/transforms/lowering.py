"""Lower a program: add passes for its sends, receives and collectives.

Messages: when a pass's result is needed on another rank, a SEND is placed after it and, at the same
moment, the RECV on the other rank: *the sender places both*. So the receives of a pair of ranks are
in the order of the sends, and tagless transfers (NCCL) can be matched by order alone. The idea is
torch's (`_add_send_recv`). A receive is posted when the message is sent; only the pass that uses
the message waits for it.

Collectives: every rank enters a barrier with a pass of the barrier's name. It does not wait there;
the passes that need the result do. Each barrier class has its own communicator: on a common one the
ranks of Algorithm 1 would enter in different orders and deadlock, because the last rank broadcasts
with its forward and the others enter when their vocabulary pass needs the result. A rank that
contributes nothing to a barrier enters it at the time when the barrier starts, so that no rank
waits for it. A barrier that follows another one (Algorithm 2's reduction follows the statistics of
the softmax) needs a computation on the ranks in between, to rescale: a continuation C, in front of
the first pass that starts after the statistics are there. Both positions are taken from a simulated
timeline and keep its order of events, so they cannot close a cycle.
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
    """Return the program with sends, receives, collectives and continuations.

    `costs`: used to find the positions of late collectives; only their proportions matter.
    `continuations`: whether ranks rescale between their passes, with C; False is for runtimes that
    rescale on the collectives' stream. Raises ValueError if the program has messages already or
    cannot run to its end.

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
    """Return the costs with every pass taking time, so that no two events of a rank coincide."""
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
    """Return the rank's row with the collectives that it enters."""
    # Collectives to enter before the pass at an index: those that the timeline gives a position.
    front: dict[int, list[Pass]] = {}
    starts, ends = [slot.start_ns for slot in slots], [slot.end_ns for slot in slots]
    for barrier in program.barriers:
        if barrier.source == "barrier":
            # A continuation goes in front of the first pass that starts after the barrier's end.
            for event in timeline.lanes[barrier.after] if continuations else ():
                at = bisect_left(starts, event.end_ns)
                pair = [Pass(rank, "C", event.what.microbatch)]
                pair.append(Pass(rank, barrier.name, event.what.microbatch))
                front.setdefault(at, []).extend(pair)
        elif barrier.source != "every" and rank != _source(barrier, program):
            # The rank contributes nothing, so it enters when the barrier starts.
            for event in timeline.lanes[barrier.name]:
                at = bisect_left(ends, event.start_ns)
                front.setdefault(at, []).append(Pass(rank, barrier.name, event.what.microbatch))
    # A rank that contributes enters right after the pass that makes its part.
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
    """Return the rank of the first or last stage, from which a barrier starts."""
    return program.placement[0 if barrier.source == "first" else -1]


def _makes(barrier: Barrier, item: Pass, program: Program) -> bool:
    """Return whether the rank enters the barrier right after this pass."""
    if item.kind != barrier.after or barrier.source == "barrier":
        return False
    ends = {"first": 0, "last": program.stages - 1}
    return barrier.source == "every" or item.stage == ends[barrier.source]


def _messages(program: Program) -> Program:
    """Run all ranks in turn, a pass at a time, and place each SEND with its RECV."""
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
        # Every rank waits for a pass of another one that comes later.
        if not moved:
            heads = " ".join(str(row[0]) for row in left if row)
            raise ValueError(f"deadlock at {heads}; run check(program) to see the cycle")
    return replace(program, ranks=tuple(map(tuple, rows)))


def _ready(item: Pass, placed: set[Pass], program: Program) -> bool:
    """Return whether the inputs of a pass from other stages are computed."""
    if item.kind == "F" and item.stage > 0:
        return Pass(item.stage - 1, "F", item.microbatch) in placed
    if item.kind in BACKWARD and item.stage < program.stages - 1:
        return any(Pass(item.stage + 1, kind, item.microbatch) in placed for kind in BACKWARD)
    return True


def _message(item: Pass, program: Program) -> tuple[Pass, Pass] | None:
    """Return the SEND after a pass and the RECV on the peer, if its result leaves the rank."""
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
