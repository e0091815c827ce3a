"""Conversion of filled schedules to programs with a pass for each encoder layer.

Each encoder layer of a microbatch is a pass of a kind of its own, EF_A, EF_B ... forward and EB_A
... backward, on the rank that holds it. What encoders hand on and take (a pipeline's hops, features
to the language model, gradients back) are edges of the program, since an encoder's neighbours
follow from the plan and not from the kind; `lower` makes messages of those that cross ranks. Passes
are in the order of their planned ends: whatever a pass needs ends before it, so all ranks' orders
together have no cycle, however long passes really take.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...ir.kinds import BACKWARD, layer_kind
from ...ir.passes import Pass
from ...ir.program import Edge, Program
from ..plan.encoder_plans import Host
from ..problem.gaps import Ints
from ..problem.instance import EncoderPipeline, FilledSchedule, FillProblem, lengths


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
    forward = p.forward + lengths(problem.forward, p.ranks, p.microbatches)
    backward = p.backward + lengths(problem.backward, p.ranks, p.backward_order)
    forward_numbers, backward_numbers = _numbers(problem)
    sizes, back = problem.forward_layers, problem.backward_layers
    yield from _layers("EF", p, forward, p.microbatches, sizes, forward_numbers)
    yield from _layers("EB", p, backward, p.backward_order, back, backward_numbers[::-1])


def _numbers(problem: FillProblem) -> tuple[range, range]:
    """Return the numbers of a rank's layers, and of those that have a backward: the last ones."""
    count = len(problem.forward_layers)
    return range(count), range(count - len(problem.backward_layers), count)


def _layers(
    direction: str,
    p: EncoderPipeline,
    ends: Ints,
    order: tuple[int, ...],
    sizes: tuple[int, ...],
    numbers: range,
) -> Iterator[tuple[int, int, Pass]]:
    if not ends.size:
        return
    last = np.cumsum(sizes) - 1
    for at, microbatch in enumerate(order):
        for stage, rank in enumerate(p.ranks):
            for layer, end in zip(numbers, ends[at, stage, last].tolist(), strict=True):
                yield rank, end, Pass(rank, layer_kind(direction, layer), microbatch)


def _edges(filled: FilledSchedule, host: Host, p: EncoderPipeline) -> Iterator[Edge]:
    forward, backward = _numbers(filled.problem)
    place = dict(zip(p.microbatches, p.position, strict=True))
    entered = sorted(
        (slot.start_ns, slot.what)
        for slot in host.timeline.ranks[host.gaps.first_rank]
        if slot.what.stage == 0 and slot.what.kind == "F"
    )
    end = layer_kind("EF", forward[-1])
    for microbatch in p.microbatches:
        for here, there in zip(p.ranks, p.ranks[1:], strict=False):
            entry = Pass(there, layer_kind("EF", 0), microbatch)
            yield Edge(Pass(here, end, microbatch), entry)
        yield Edge(Pass(p.ranks[-1], end, microbatch), entered[place[microbatch]][1])
    if not backward:
        return
    high, low = layer_kind("EB", backward[-1]), layer_kind("EB", backward[0])
    row = host.program.ranks[host.gaps.first_rank]
    gradients = {item.microbatch: item for item in row if _ends(item)}
    for microbatch in p.backward_order:
        number = entered[place[microbatch]][1].microbatch
        yield Edge(gradients[number], Pass(p.ranks[-1], high, microbatch))
        for here, there in zip(p.ranks[::-1], p.ranks[-2::-1], strict=False):
            yield Edge(Pass(here, low, microbatch), Pass(there, high, microbatch))


def _ends(item: Pass) -> bool:
    """Return whether a pass computes the gradient of the features: stage 0's B or I."""
    return item.stage == 0 and item.kind in BACKWARD
