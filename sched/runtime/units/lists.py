"""Compile the programs of all replicas to one list of operations for each of the job's ranks.

Microbatches of replica r are numbered from r times their count on, so nothing that two replicas
make has one name. An encoder's rank gets the operations of all programs in its order, each receive
one pass ahead of its use. Channels stay in one order at both ends: both sides have the passes that
make and use messages in the plan's order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...ir.program import NO_MICROBATCH, Edge, Pass, Program
from ..compiled import Op, compile_program, lowered, with_deliveries
from .layout import Units

Order = Mapping[int, Sequence[tuple[int, Pass]]]


def shift(program: Program, replica: int, replicas: int) -> Program:
    """Return a replica's program with microbatches that no other replica has."""
    if replicas == 1:
        return program
    first = replica * program.microbatches

    def moved(item: Pass) -> Pass:
        return item if item.microbatch == NO_MICROBATCH else _later(item, first)

    return replace(
        program,
        ranks=tuple(tuple(map(moved, row)) for row in program.ranks),
        microbatches=replicas * program.microbatches,
        edges=tuple(Edge(moved(e.source), moved(e.target)) for e in program.edges),
    )


def joined(programs: Sequence[Program]) -> Program:
    """Return what all programs have, by seat: parts of the model find their passes in it."""
    count = len(programs)
    moved = [shift(program, replica, count) for replica, program in enumerate(programs)]
    rows = zip(*(program.ranks for program in moved), strict=True)
    edges = tuple(edge for program in moved for edge in program.edges)
    ranks = tuple(tuple(item for row in same for item in row) for same in rows)
    return replace(moved[0], ranks=ranks, edges=edges)


def compile_units(
    programs: Sequence[Program], units: Units, order: Order, input_gradient: Sequence[bool]
) -> list[tuple[Op, ...]]:
    """Return the operations of every rank of the job. `order`: as in UnitPlan."""
    lists_by_replica: list[list[tuple[Op, ...]]] = []
    for replica, program in enumerate(programs):
        shifted = shift(lowered(program), replica, len(programs))
        lists = [compile_program(shifted, seat, input_gradient) for seat in range(units.seats)]
        lists_by_replica.append([_on_job(ops, units, replica) for ops in lists])
    count = programs[0].microbatches
    rank_lists: list[tuple[Op, ...]] = []
    for rank in range(units.ranks):
        seat, replicas = units.seat(rank), units.replicas(rank)
        if seat in order:
            passes = [_later(item, replica * count) for replica, item in order[seat]]
            rank_lists.append(tuple(_merged([lists_by_replica[r][seat] for r in replicas], passes)))
        else:
            rank_lists.append(lists_by_replica[replicas[0]][seat])
    return with_deliveries(rank_lists)


def _later(item: Pass, first: int) -> Pass:
    return replace(item, microbatch=item.microbatch + first)


def _on_job(ops: Sequence[Op], units: Units, replica: int) -> tuple[Op, ...]:
    """Return a seat's operations with the job's ranks as sources and targets."""

    def at(seat: int) -> int:
        return units.rank(replica, seat)

    return tuple(
        op._replace(
            source=None if op.source is None else at(op.source), targets=tuple(map(at, op.targets))
        )
        for op in ops
    )


def _merged(lists: Sequence[Sequence[Op]], order: Sequence[Pass]) -> Iterator[Op]:
    """Yield passes in an order, what they send right after them, and receives one pass ahead."""
    receives = {op.writes[0]: op for ops in lists for op in ops if op.source is not None}
    by_pass = {ops[0].what: ops for row in lists for ops in _with_sends(row)}
    # The passes of frozen encoders are in the plan, and were left out of the programs.
    segments = [by_pass[item] for item in order if item in by_pass]
    # The gradients of several encoders' features are one message: their first reader posts.
    posted = [
        [receives.pop(value) for value in ops[0].reads if value in receives] for ops in segments
    ]
    yield from (op for post in posted[:1] for op in post)
    for ops, post in zip(segments, [*posted[1:], []], strict=True):
        yield from post
        yield from ops


def _with_sends(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yield each pass with the sends that follow it; receives are left out."""
    segment: list[Op] = []
    for op in (op for op in ops if op.source is None):
        if op.targets:
            segment.append(op)
            continue
        if segment:
            yield segment
        segment = [op]
    if segment:
        yield segment
