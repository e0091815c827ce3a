"""Lowering: the communication of a program made explicit.

Messages: after a pass whose result another rank needs, its rank gets a SEND and, in the same
step, the other rank its RECV: *the sender places both*. So the receives of a pair of ranks stand
in the order of the sends, which is all that tagless transfers (NCCL) can match by. The idea is
torch's (`_add_send_recv`). A receive is posted when the message is on its way; only the pass that
uses it waits for it.

Collectives: every rank enters a barrier with a pass of the barrier's name, in the order of its
own passes. Each barrier class has a communicator of its own. On a single one the ranks of
Algorithm 1 would enter in different orders and stop: the last rank broadcasts with its forward,
the others enter when their vocabulary pass needs the result.

A barrier that follows another one (Algorithm 2's reduction follows the softmax statistics) needs a
rank in between, to rescale: a continuation C. It stands behind the pass that follows, which the
first collective can hide under; `continue_after=0` puts it at once.
"""

from collections import deque
from dataclasses import replace

from .kinds import BACKWARD
from .passes import Pass
from .program import Barrier, Program


def lower(program: Program, *, continue_after: int = 1) -> Program:
    """The program with sends, receives, collectives and continuations.

    Raises ValueError if the program has them already or cannot run to its end.

    >>> from .registry import schedule
    >>> for row in lower(schedule("1f1b", ranks=2, microbatches=1)).ranks:
    ...     print(*row)
    0F0 0SEND_F0 0RECV_B0 0B0
    1RECV_F0 1F0 1B0 1SEND_B0
    """
    if any("SEND" in item.kind or "RECV" in item.kind for row in program.ranks for item in row):
        raise ValueError("the program has sends and receives already; lower it only once")
    return _messages(_collectives(program, continue_after))


def _collectives(program: Program, continue_after: int) -> Program:
    if not program.barriers:
        return program
    follows = [b for b in program.barriers if b.source == "barrier"]
    rows = []
    for rank, row in enumerate(program.ranks):
        out: list[Pass] = []
        waiting: deque[tuple[int, Barrier, int]] = deque()
        for at, item in enumerate(row):
            while waiting and (waiting[0][0] <= at or _needed(waiting[0], item, program)):
                _, barrier, microbatch = waiting.popleft()
                out += [Pass(rank, "C", microbatch), Pass(rank, barrier.name, microbatch)]
            for barrier in program.barriers:
                if _receives(barrier, item, rank, program):
                    out.append(Pass(rank, barrier.name, item.microbatch))
            out.append(item)
            for barrier in program.barriers:
                if _enters(barrier, item, program):
                    out.append(Pass(rank, barrier.name, item.microbatch))
                    waiting.extend(
                        (at + 1 + continue_after, after, item.microbatch)
                        for after in follows
                        if after.after == barrier.name
                    )
        for _, barrier, microbatch in waiting:
            out += [Pass(rank, "C", microbatch), Pass(rank, barrier.name, microbatch)]
        rows.append(tuple(out))
    held = {barrier.after for barrier in follows}
    barriers = tuple(
        replace(b, before=(*b.before, ("every", "C"))) if b.name in held else b
        for b in program.barriers
    )
    return replace(program, ranks=tuple(rows), barriers=barriers)


def _enters(barrier: Barrier, item: Pass, program: Program) -> bool:
    """Whether a rank enters the barrier behind this pass."""
    if item.kind != barrier.after or barrier.source == "barrier":
        return False
    if barrier.source == "every":
        return True
    return item.stage == (0 if barrier.source == "first" else program.stages - 1)


def _receives(barrier: Barrier, item: Pass, rank: int, program: Program) -> bool:
    """Whether a rank that makes nothing for the barrier enters it in front of this pass."""
    if barrier.source not in ("first", "last"):
        return False
    source = program.placement[0 if barrier.source == "first" else -1]
    return rank != source and ("every", item.kind) in barrier.before


def _needed(waiting: tuple[int, Barrier, int], item: Pass, program: Program) -> bool:
    """Whether the pass waits for the barrier, so that the continuation cannot stand behind it."""
    _, barrier, microbatch = waiting
    if item.microbatch != microbatch:
        return False
    ends = {"first": 0, "last": program.stages - 1}
    return any(
        item.kind == kind and (where == "every" or item.stage == ends[where])
        for where, kind in barrier.before
    )


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
