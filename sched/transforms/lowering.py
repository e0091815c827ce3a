"""Lower a program: add passes for its sends, receives and collectives.

Messages: a pass whose result is needed on another rank is followed by its SEND, and the RECV is put
into the other rank's list where that rank posts it: `messages` says where and why.

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
from dataclasses import replace

import numpy as np

from ..ir.kinds import is_kind
from ..ir.passes import Pass
from ..ir.program import Barrier, Program
from ..simulation.costs import Costs, unit_costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Slot, Timeline
from .messages import place_at_send, post_ahead


def lower(
    program: Program,
    costs: Costs | None = None,
    *,
    continuations: bool = True,
    ahead: int | None = 1,
) -> Program:
    """Return the program with sends, receives, collectives and continuations.

    `costs`: used to find the positions of late collectives; only their proportions matter.
    `continuations`: whether ranks rescale between their passes, with C; False is for runtimes that
    rescale on the collectives' stream. `ahead`: the number of compute passes before its consumer
    that a receive is posted; None posts it when the message is sent, for runtimes with one
    communicator for both directions (torch's). Raises ValueError if the program has messages
    already or cannot run to its end, and for a negative `ahead`.

    >>> from counterpoise.sched import schedule
    >>> for row in lower(schedule("1f1b", ranks=2, microbatches=1)).ranks:
    ...     print(*row)
    0RECV_B0 0F0 0SEND_F0 0B0
    1RECV_F0 1F0 1B0 1SEND_B0
    """
    if any(item.kind[:5] in ("SEND_", "RECV_") for row in program.ranks for item in row):
        raise ValueError("the program has sends and receives already; lower it only once")
    if ahead is not None and ahead < 0:
        raise ValueError(f"ahead is {ahead}; give 0 or more passes, or None")
    timeline = simulate(program, positive_costs(program, costs))
    if program.barriers:
        program = _collectives(program, timeline, continuations)
    return place_at_send(program) if ahead is None else post_ahead(program, ahead)


def positive_costs(program: Program, costs: Costs | None = None) -> Costs:
    """Return costs in which every pass takes time, so that no two events of a rank coincide.

    `costs`: by default some that fit every program.
    """
    costs = costs or unit_costs(10, 20, 3)
    kinds = {item.kind for row in program.ranks for item in row if is_kind(item.kind)}
    times = dict.fromkeys(kinds, 1) | dict(costs.pass_ns)
    return replace(costs, pass_ns={k: np.maximum(np.asarray(v), 1) for k, v in times.items()})


def _collectives(program: Program, timeline: Timeline, continuations: bool) -> Program:
    members = program.members
    rows = tuple(
        _enter(rank, slots, program, timeline, continuations)
        if rank in members
        else tuple(slot.what for slot in slots)
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
