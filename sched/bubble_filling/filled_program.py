"""Conversion of filled schedules to programs with a pass for each encoder layer.

Each encoder layer of a microbatch is a pass of a kind of its own, EF_A, EF_B ... forward and EB_A
... backward, on the rank that holds it. What encoders hand on and take (a pipeline's hops, features
to the language model, gradients back) are edges of the program, since an encoder's neighbours
follow from the plan and not from the kind; `lower` makes messages of those that cross ranks. Passes
are in the order of their planned ends: whatever a pass needs ends before it, so all ranks' orders
together have no cycle, however long passes really take.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..ir.kinds import BACKWARD, layer_kind
from ..ir.program import Edge, Pass, Program
from ..simulation.costs import Costs
from .encoder_plans import Host
from .executable import EncoderTimes, fill_between_passes
from .gaps import Ints
from .instance import EncoderPipeline, FilledSchedule, taken


def fill_program(host: Host, filled: FilledSchedule, *, copy: int = 0) -> Program:
    """Return the program of one copy of the encoder pipelines, with its edges.

    Raises ValueError if the problem does not say which kernels are which layer's.
    """
    problem = filled.problem
    if sum(problem.forward_layers) != len(problem.forward.resource):
        raise ValueError("the problem does not say its layers; make it with plan_problem")
    timed: list[list[tuple[int, Pass]]] = [
        [(slot.end_ns, slot.what) for slot in row] for row in host.timeline.ranks
    ]
    edges: list[Edge] = []
    for p in filled.pipelines:
        if p.copy == copy:
            for rank, end, what in _passes(filled, p):
                timed[rank].append((end, what))
            edges += _edges(filled, host, p)
    rows = tuple(tuple(what for _, what in sorted(row, key=lambda one: one[0])) for row in timed)
    # By what they join, so that a line of the text form holds the edges of one kind.
    edges.sort(key=lambda e: (e.source.stage, e.source.kind, e.target.stage, e.source.microbatch))
    name = f"{host.program.name} with encoders"
    return replace(host.program, ranks=rows, name=name, edges=tuple(edges))


def _passes(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[tuple[int, int, Pass]]:
    """Yield rank, planned end and pass of every encoder layer."""
    problem = filled.problem
    forward = p.forward + taken(problem, problem.forward, p.ranks, p.microbatches, p.forward)
    backward = p.backward + taken(problem, problem.backward, p.ranks, p.backward_order, p.backward)
    encoders = problem.layers_of_encoders()
    every = [number for layers, _ in encoders for number in layers]
    trained = [number for layers, yes in encoders for number in layers if yes]
    sizes, back = problem.forward_layers, problem.backward_layers
    yield from _layers("EF", p, forward, p.microbatches, sizes, every)
    yield from _layers("EB", p, backward, p.backward_order, back, trained[::-1])


def _layers(
    direction: str,
    p: EncoderPipeline,
    ends: Ints,
    order: tuple[int, ...],
    sizes: tuple[int, ...],
    numbers: list[int],
) -> Iterator[tuple[int, int, Pass]]:
    if not ends.size:
        return
    last = np.cumsum(sizes) - 1
    for at, microbatch in enumerate(order):
        for stage, rank in enumerate(p.ranks):
            for layer, end in zip(numbers, ends[at, stage, last].tolist(), strict=True):
                yield rank, end, Pass(rank, layer_kind(direction, layer), microbatch)


def _edges(filled: FilledSchedule, host: Host, p: EncoderPipeline) -> Iterator[Edge]:
    place = dict(zip(p.microbatches, p.position, strict=True))
    entered = sorted(
        (slot.start_ns, slot.what)
        for slot in host.timeline.ranks[host.gaps.first_rank]
        if slot.what.stage == 0 and slot.what.kind == "F"
    )
    row = host.program.ranks[host.gaps.first_rank]
    gradients = {item.microbatch: item for item in row if _ends(item)}
    for microbatch in p.microbatches:
        enters = entered[place[microbatch]][1]
        for layers, trained in filled.problem.layers_of_encoders():
            yield from _hops("EF", p.ranks, layers, microbatch)
            yield Edge(Pass(p.ranks[-1], layer_kind("EF", layers[-1]), microbatch), enters)
            if trained:
                top = Pass(p.ranks[-1], layer_kind("EB", layers[-1]), microbatch)
                yield Edge(gradients[enters.microbatch], top)
                yield from _hops("EB", p.ranks[::-1], layers[::-1], microbatch)


def _hops(direction: str, ranks: Sequence[int], layers: range, microbatch: int) -> Iterator[Edge]:
    """Yield the edges of an encoder from rank to rank: from its last layer there to its first."""
    for here, there in pairwise(ranks):
        last = Pass(here, layer_kind(direction, layers[-1]), microbatch)
        yield Edge(last, Pass(there, layer_kind(direction, layers[0]), microbatch))


def _ends(item: Pass) -> bool:
    """Return whether a pass computes the gradient of the features: stage 0's B or I."""
    return item.stage == 0 and item.kind in BACKWARD


def with_encoders(
    program: Program,
    costs: Costs,
    encoders: Sequence[EncoderTimes],
    *,
    width: int = 1,
    fixed: bool = True,
) -> Program:
    """Return the program with a pass for each layer of the encoders, in its gaps.

    `costs`: of the program's passes. `width`: the ranks of an encoder pipeline, each with an equal
    share of every encoder's layers. `fixed`: whether the encoders keep the order of the
    microbatches, as they must where these differ. Raises ValueError as `fill_between_passes` does.

    >>> from counterpoise.sched import schedule, unit_costs
    >>> program = schedule("1f1b", ranks=2, microbatches=2)
    >>> made = with_encoders(program, unit_costs(10, 20), [EncoderTimes((3, 3), (6, 6))])
    >>> print(*made.ranks[1])
    1EF_A1 1EF_B1 1F0 1B0 1F1 1B1 1EB_B1 1EB_A1
    """
    host, filled = fill_between_passes(program, costs, encoders, width=width, fixed=fixed)
    return replace(fill_program(host, filled), name=f"{program.name} with encoders")
