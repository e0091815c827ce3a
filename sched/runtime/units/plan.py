"""Plan who encodes what: one program for each replica of the language model, without torch.

Microbatches are dealt to the encoders' replicas in the order in which the language model needs
them, over all of its replicas, whatever the two numbers of replicas are. An encoder's rank runs the
passes of all programs in one order: forwards when their features are needed, `ahead` microbatches
early, and backwards when their gradients come. Both moments are those of one timeline of the
language model, the same for all replicas, and a forward that is earlier delays nothing, so all
orders together have no cycle. A generator's replicas get microbatches in the order in which the
last stage ends them in that timeline, and give their gradients back at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ...ir.kinds import BACKWARD, layer_kind
from ...ir.program import Edge, Pass, Program
from ...simulation.simulator import simulate
from ...simulation.timeline import Timeline
from ...transforms.generator_passes import generator_edges, last_backwards
from ...transforms.lowering import positive_costs
from .layout import Units, UnitSize


class _Job(NamedTuple):
    """A microbatch of a replica, when it is needed, and when its gradient is there."""

    needed_ns: int
    replica: int
    microbatch: int
    back_ns: int


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """The programs of a step. On a mesh there is one.

    `base`: that of the language model alone, alike in all replicas. `programs`: of each replica of
    the language model, with the encoders' passes for it. `order`: of each rank of encoders and
    generator, by seat, the passes of all programs in the order in which it runs them.
    """

    base: Program
    programs: tuple[Program, ...]
    order: dict[int, tuple[tuple[int, Pass], ...]]


def plan_on_mesh(program: Program) -> UnitPlan:
    """Return the plan of the only replica of a program on a mesh, whose ranks run all passes."""
    return UnitPlan(program, (program,), {})


def plan_units(base: Program, units: Units, layers: Sequence[int]) -> UnitPlan:
    """Return the plan of a step.

    `base`: of one replica of the language model. `layers`: of each encoder, in all. Raises
    ValueError for another number of ranks, and for layers that do not divide.

    >>> from counterpoise.sched import schedule
    >>> from counterpoise.sched.runtime import UnitSize
    >>> base = schedule("1f1b", ranks=2, microbatches=2)
    >>> plan = plan_units(base, Units(UnitSize(1, 2), UnitSize(2, 1)), [1])
    >>> [" ".join(map(str, row)) for row in plan.programs[0].ranks[2:]]
    ['2EF_A0 2EB_A0', '3EF_A1 3EB_A1']
    """
    size = units.backbone.pp
    if len(base.ranks) != size:
        raise ValueError(f"the schedule has {len(base.ranks)} ranks, the backbone pp {size}")
    timeline = simulate(base, positive_costs(base))
    order: dict[int, tuple[tuple[int, Pass], ...]] = {}
    edges: list[list[Edge]] = [[] for _ in range(units.backbone.dp)]
    if units.encoder is not None:
        _encode(base, timeline, units, units.encoder, layers, order, edges)
    _generate(base, timeline, units, order, edges)
    programs = tuple(
        _program(base, replica, order, edges[replica]) for replica in range(units.backbone.dp)
    )
    return UnitPlan(base, programs, order)


def _encode(
    base: Program,
    timeline: Timeline,
    units: Units,
    size: UnitSize,
    layers: Sequence[int],
    order: dict[int, tuple[tuple[int, Pass], ...]],
    edges: Sequence[list[Edge]],
) -> None:
    """Add the encoders' passes to the order, and their edges to those of each replica."""
    width = size.pp
    if any(count % width for count in layers):
        raise ValueError(
            f"encoders of {', '.join(map(str, layers))} layers do not divide over pp {width}"
        )
    # Dealt in the order of need, whosever they are: numbers of replicas need not divide.
    jobs = sorted(_jobs(base, timeline, units.backbone.dp))
    shares = [count // width for count in layers]
    gradients = {p.microbatch: p for p in base.ranks[base.placement[0]] if _ends(p)}
    for number in range(size.dp):
        seats = units.encoder_seats[number * width : (number + 1) * width]
        encoder_jobs = jobs if units.spread else jobs[number :: size.dp]
        for seat in seats:
            order[seat] = tuple(_order(encoder_jobs, seat, sum(shares), units.ahead))
        for job in encoder_jobs:
            gradient = gradients.get(job.microbatch)
            edges[job.replica] += _edges(job.microbatch, gradient, seats, shares)


def _generate(
    base: Program,
    timeline: Timeline,
    units: Units,
    order: dict[int, tuple[tuple[int, Pass], ...]],
    edges: Sequence[list[Edge]],
) -> None:
    """Add a generator's passes to the order, and their edges to those of each replica."""
    last = base.stages - 1
    row = timeline.ranks[base.placement[last]]
    ended = [s for s in row if s.what.stage == last and s.what.kind == "F"]
    replicas = range(units.backbone.dp)
    jobs = sorted((s.end_ns, replica, s.what.microbatch) for s in ended for replica in replicas)
    seats, back = units.generator_seats, last_backwards(base)
    kinds = ("GF", "GB") if back else ("GF",)
    for number, seat in enumerate(seats):
        # Dealt as images are to encoders: numbers of replicas need not divide.
        replica_jobs = jobs[number :: len(seats)]
        order[seat] = tuple((r, Pass(seat, kind, m)) for _, r, m in replica_jobs for kind in kinds)
        for _, replica, microbatch in replica_jobs:
            edges[replica] += generator_edges(last, microbatch, seat, back.get(microbatch))


def _program(
    base: Program,
    replica: int,
    order: dict[int, tuple[tuple[int, Pass], ...]],
    edges: Sequence[Edge],
) -> Program:
    """Return the program of one replica, with what encoders and generator do for it."""
    rows = [tuple(p for r, p in order[seat] if r == replica) for seat in sorted(order)]
    name = f"{base.name} in units"
    return replace(base, ranks=(*base.ranks, *rows), edges=(*base.edges, *edges), name=name)


def _jobs(base: Program, timeline: Timeline, replicas: int) -> Iterator[_Job]:
    slots = [slot for slot in timeline.ranks[base.placement[0]] if slot.what.stage == 0]
    needed = {s.what.microbatch: s.start_ns for s in slots if s.what.kind == "F"}
    # A program without backward passes has no gradients to wait for.
    back = {s.what.microbatch: s.end_ns for s in slots if _ends(s.what)}
    for microbatch, at in needed.items():
        for replica in range(replicas):
            yield _Job(at, replica, microbatch, back.get(microbatch, -1))


def _order(jobs: Sequence[_Job], seat: int, layers: int, ahead: int) -> Iterator[tuple[int, Pass]]:
    """Yield replica and pass of all that an encoder's rank runs."""
    events: list[tuple[int, int, int, _Job]] = []
    for at, job in enumerate(jobs):
        early = jobs[at - ahead].needed_ns if at >= ahead else -1
        events.append((early, 0, at, job))
        if job.back_ns >= 0:
            events.append((job.back_ns, 1, at, job))
    for _, backward, _, job in sorted(events):
        numbers = range(layers)[::-1] if backward else range(layers)
        for number in numbers:
            kind = layer_kind("EB" if backward else "EF", number)
            yield job.replica, Pass(seat, kind, job.microbatch)


def _edges(
    microbatch: int, gradient: Pass | None, seats: range, shares: Sequence[int]
) -> Iterator[Edge]:
    """Yield the edges of a microbatch through an encoder pipeline, to the model and back."""
    first = 0
    for share in shares:
        low, top = first, first + share - 1
        first += share

        def layer(seat: int, direction: str, number: int) -> Pass:
            return Pass(seat, layer_kind(direction, number), microbatch)

        for here, there in pairwise(seats):
            yield Edge(layer(here, "EF", top), layer(there, "EF", low))
        yield Edge(layer(seats[-1], "EF", top), Pass(0, "F", microbatch))
        if gradient is None:
            continue
        yield Edge(gradient, layer(seats[-1], "EB", top))
        for here, there in pairwise(reversed(seats)):
            yield Edge(layer(here, "EB", low), layer(there, "EB", top))


def _ends(item: Pass) -> bool:
    """Return whether a pass makes the gradient of the features: stage 0's B or I."""
    return item.stage == 0 and item.kind in BACKWARD
