"""Make the last backward of chosen stages a whole one, for wrappers that reduce in its hooks."""

from collections.abc import Collection
from dataclasses import replace

from ...ir.passes import Pass
from ...ir.program import Edge, Program


def with_whole_last_backward(program: Program, stages: Collection[int]) -> Program:
    """Return the program with these stages' last I and its W made one B, after their other W.

    FSDP2 reduces gradients in hooks of a backward through its module: those that a W makes after
    the last such backward would be lost. Programs that only have B stay as they are. An edge from
    such an I, as that of the gradient of an encoder's features, starts at the B; an edge to it, as
    from a generator, ends there.

    >>> from counterpoise.sched import schedule
    >>> program = with_whole_last_backward(schedule("zb-h1", ranks=2, microbatches=2), [1])
    >>> print(*program.ranks[1])
    1F0 1I0 1F1 1W0 1B1
    """
    rows = list(program.ranks)
    for stage in stages:
        rank = program.placement[stage]
        rows[rank] = _with_whole_last(rows[rank], stage)
    there = {item for row in rows for item in row}

    def made(item: Pass) -> Pass:
        return item if item in there else replace(item, kind="B")

    edges = tuple(Edge(made(edge.source), made(edge.target)) for edge in program.edges)
    return replace(program, ranks=tuple(rows), edges=edges)


def _with_whole_last(row: tuple[Pass, ...], stage: int) -> tuple[Pass, ...]:
    own = [at for at, item in enumerate(row) if item.stage == stage and item.kind in ("B", "I")]
    if not own:
        return row
    last = row[own[-1]]
    weights = [item for item in row[own[-1] :] if item.stage == stage and item.kind == "W"]
    ahead = [item for item in weights if item.microbatch != last.microbatch]
    whole = Pass(stage, "B", last.microbatch)
    rest = [item for item in row[own[-1] + 1 :] if item not in weights]
    return (*row[: own[-1]], *ahead, whole, *rest)
