"""Fit a program to what is trained: each function returns another program.

`forward_only` evaluates a model by the schedule that trains it; `drop_encoder_backward` leaves
out encoders that are not trained; `with_whole_last_backward` is for wrappers that reduce in hooks
of the backward; `with_reductions` and `with_step_end` add the sum of the gradients over replicas.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from ..ir.channels import crossing_results
from ..ir.kinds import kind
from ..ir.program import Barrier, Edge, Pass, Program


def with_step_end(program: Program) -> Program:
    """Return the program with a REDUCE_GRAD per stage and an O per rank after its passes.

    A rank's stages reduce in the order in which their last pass ends. Raises ValueError if the
    program has such passes already.

    >>> from counterpoise.sched import schedule
    >>> program = with_step_end(schedule("zbv", ranks=1, microbatches=1))
    >>> print(*program.ranks[0])
    0F0 1F0 1I0 1W0 0I0 0W0 1REDUCE_GRAD 0REDUCE_GRAD 0O
    """
    if any(pass_.kind in ("REDUCE_GRAD", "O") for row in program.ranks for pass_ in row):
        raise ValueError("the program has REDUCE_GRAD or O already; add it only once")
    rows = []
    for rank, row in enumerate(program.ranks):
        staged = [pass_.stage for pass_ in row if kind(pass_.kind).scope == "stage"]
        order = {stage: at for at, stage in enumerate(staged)}
        stages = sorted(order, key=order.__getitem__)
        end = [*(Pass(stage, "REDUCE_GRAD") for stage in stages), Pass(rank, "O")]
        rows.append((*row, *end))
    return replace(program, ranks=tuple(rows))


# T and G are left: they read the statistics of all ranks, from which the loss is computed.
_BACKWARD = frozenset(("B", "I", "W", "C", "IB", "GB"))


def forward_only(program: Program) -> Program:
    """Return the program with its forward passes in their order, and the barriers between them.

    It is as free of deadlock as the program is: all that its passes wait for was before them there.

    >>> from counterpoise.sched import schedule
    >>> print(*forward_only(schedule("1f1b-alg2", ranks=2, microbatches=1)).ranks[1])
    1F0 1S0 1T0
    """
    rows = tuple(tuple(filter(_is_forward, row)) for row in program.ranks)
    left = {pass_.kind for row in rows for pass_ in row}
    barriers = tuple(filter(None, (_restrict(barrier, left) for barrier in program.barriers)))
    edges = tuple(edge for edge in program.edges if all(map(_is_forward, edge)))
    return replace(program, ranks=rows, barriers=barriers, edges=edges)


def _is_forward(pass_: Pass) -> bool:
    # EB and a letter are an encoder's backward.
    encoder = pass_.kind.startswith("EB")
    return pass_.kind not in _BACKWARD and not encoder and not kind(pass_.kind).once


def _restrict(barrier: Barrier, kinds: Collection[str]) -> Barrier | None:
    """Return a barrier for those of its passes that are left; None if it has no use without."""
    before = tuple(target for target in barrier.before if target[1] in kinds)
    if barrier.after not in kinds or not before:
        return None
    return replace(barrier, before=before)


def drop_encoder_backward(
    program: Program, unwanted: Callable[[Pass], bool] | None = None
) -> Program:
    r"""Return the program without EB passes, and without the edges and messages that lead there.

    `unwanted`: which EB passes to leave out, all by default. What they hand down must be unwanted,
    too.

    >>> from counterpoise.sched import parse_program
    >>> text = "placement: 0\nmicrobatches: 1\nedges: 0EF0->0F0 0B0->0EB0\n0: 0EF0 0F0 0B0 0EB0"
    >>> print(drop_encoder_backward(parse_program(text)))
    placement: 0
    microbatches: 1
    edges: 0EF0->0F0
    0: 0EF0 0F0  0B0
    """

    def goes(pass_: Pass) -> bool:
        backward = pass_.kind == "EB" or pass_.kind.startswith("EB_")
        return backward and (unwanted is None or unwanted(pass_))

    edges = tuple(edge for edge in program.edges if not any(map(goes, edge)))
    left = replace(program, edges=edges)
    carried = {source for source, _ in crossing_results(left)}

    def stays(pass_: Pass) -> bool:
        if pass_.kind.startswith(("SEND_X_", "RECV_X_")):
            return replace(pass_, kind=pass_.kind[7:]) in carried
        return not goes(pass_)

    return replace(left, ranks=tuple(tuple(filter(stays, row)) for row in program.ranks))


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
    there = {pass_ for row in rows for pass_ in row}

    def moved(pass_: Pass) -> Pass:
        return pass_ if pass_ in there else replace(pass_, kind="B")

    edges = tuple(Edge(moved(edge.source), moved(edge.target)) for edge in program.edges)
    return replace(program, ranks=tuple(rows), edges=edges)


def _with_whole_last(row: tuple[Pass, ...], stage: int) -> tuple[Pass, ...]:
    places = [at for at, pass_ in enumerate(row) if pass_.stage == stage]
    last = max((at for at in places if row[at].kind in ("B", "I")), default=None)
    if last is None:
        return row
    weights = [row[at] for at in places if at > last and row[at].kind == "W"]
    ahead = [pass_ for pass_ in weights if pass_.microbatch != row[last].microbatch]
    whole = Pass(stage, "B", row[last].microbatch)
    later = [pass_ for pass_ in row[last + 1 :] if pass_ not in weights]
    return (*row[:last], *ahead, whole, *later)


def with_reductions(program: Program) -> Program:
    """Return the program with each stage's REDUCE_GRAD right after its last pass.

    The reduction runs beside the passes of the rank's other stages. A stage that has a REDUCE_GRAD
    keeps it where it is. Raises ValueError if a pass of the stage follows: its gradient would be
    left out.

    >>> from counterpoise.sched import schedule
    >>> print(*with_reductions(schedule("zbv", ranks=1, microbatches=1)).ranks[0])
    0F0 1F0 1I0 1W0 1REDUCE_GRAD 0I0 0W0 0REDUCE_GRAD
    """
    return replace(program, ranks=tuple(map(_with_reductions, program.ranks)))


def _with_reductions(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    last = {
        pass_.stage: at
        for at, pass_ in enumerate(row)
        if kind(pass_.kind).scope == "stage" and kind(pass_.kind).role == "compute"
        if not kind(pass_.kind).once
    }
    reduced = {pass_.stage: at for at, pass_ in enumerate(row) if pass_.kind == "REDUCE_GRAD"}
    for stage, at in reduced.items():
        if at < last.get(stage, -1):
            raise ValueError(f"{row[at]} comes before {row[last[stage]]}; put it after it")
    ends = {at: Pass(stage, "REDUCE_GRAD") for stage, at in last.items() if stage not in reduced}
    return tuple(p for at, pass_ in enumerate(row) for p in (pass_, ends.get(at)) if p is not None)
