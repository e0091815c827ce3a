"""Add the passes of a generator: a second head behind the last stage, with a loss of its own.

DistTrain (2025) trains an encoder, a language model and a generator as one pipeline. The generator
takes the last hidden states of each microbatch (GF), and gives their gradient back (GB), for which
the last stage's backward waits.
"""

from collections.abc import Iterator
from dataclasses import replace

from ..ir.kinds import BACKWARD
from ..ir.program import Edge, Pass, Program


def with_generator(program: Program) -> Program:
    """Return the program with a generator's passes on the rank of the last stage.

    They come right before the last stage's backward: vocabulary passes of other ranks, which wait
    for its forward, are not delayed. A program that has such passes stays as it is.

    >>> from counterpoise.sched import schedule
    >>> print(*with_generator(schedule("1f1b", ranks=2, microbatches=2)).ranks[1])
    1F0 1GF0 1GB0 1B0 1F1 1GF1 1GB1 1B1
    """
    if has_generator(program):
        return program
    last, rank = program.stages - 1, program.placement[-1]
    back = last_backwards(program)
    row: list[Pass] = []
    for pass_ in program.ranks[rank]:
        if pass_.stage == last and pass_.kind in BACKWARD:
            row += [Pass(rank, "GF", pass_.microbatch), Pass(rank, "GB", pass_.microbatch)]
        row.append(pass_)
        # Programs that only evaluate have no backward to come before.
        if pass_.stage == last and pass_.kind == "F" and pass_.microbatch not in back:
            row.append(Pass(rank, "GF", pass_.microbatch))
    rows = (*program.ranks[:rank], tuple(row), *program.ranks[rank + 1 :])
    microbatches = range(program.microbatches)
    joined = (edge for m in microbatches for edge in generator_edges(last, m, rank, back.get(m)))
    return replace(program, ranks=rows, edges=(*program.edges, *joined))


def drop_last_stage(program: Program) -> Program | None:
    """Return the program of all stages but the last, which a generator takes the place of.

    Its ranks are as many forwards ahead as if the generator were one more stage, so that no rank
    waits while it has a microbatch. None where that is not a rank of its own, or where ranks meet
    at barriers.

    >>> from counterpoise.sched import schedule
    >>> print(*drop_last_stage(schedule("1f1b", ranks=2, microbatches=3)).ranks[0])
    0F0 0F1 0B0 0F2 0B1 0B2
    """
    last = len(program.ranks) - 1
    if program.barriers or program.placement.count(last) != 1 or program.placement[-1] != last:
        return None
    return replace(program, ranks=program.ranks[:last], placement=program.placement[:last])


def generator_edges(last: int, microbatch: int, rank: int, backward: Pass | None) -> Iterator[Edge]:
    """Yield the edges from the last stage to a generator's passes on a rank, and back.

    `backward`: of the last stage, one of `last_backwards`; None in programs that only evaluate.
    """
    yield Edge(Pass(last, "F", microbatch), Pass(rank, "GF", microbatch))
    if backward is not None:
        yield Edge(Pass(rank, "GB", microbatch), backward)


def last_backwards(program: Program) -> dict[int, Pass]:
    """Return the last stage's B or I by microbatch; none in programs that only evaluate."""
    last = program.stages - 1
    row = program.ranks[program.placement[last]]
    return {p.microbatch: p for p in row if p.stage == last and p.kind in BACKWARD}


def has_generator(program: Program) -> bool:
    """Return whether any rank runs a generator's passes."""
    return any(pass_.kind == "GF" for row in program.ranks for pass_ in row)


def drop_generator_gradient(program: Program) -> Program:
    """Return the program in which no gradient comes back from the generator.

    For language models of which nothing is trained: GB then serves the generator alone.

    >>> from counterpoise.sched import schedule
    >>> program = with_generator(schedule("1f1b", ranks=1, microbatches=1))
    >>> print(*drop_generator_gradient(program).edges)
    0F0->0GF0
    """
    return replace(program, edges=tuple(e for e in program.edges if e.source.kind != "GB"))
