"""Programs with a pass for each encoder layer, of filled schedules, and for executors of layers.

Each encoder layer of a microbatch is a pass of a kind of its own, EF_A, EF_B ... forward and EB_A
... backward, on the rank that holds it. What encoders hand on and take (a pipeline's hops, features
to the language model, gradients back) are edges of the program, since an encoder's neighbours
follow from the plan and not from the kind; `lower` makes messages of those that cross ranks. Passes
are in the order of their planned ends: whatever a pass needs ends before it, so all ranks' orders
together have no cycle, however long passes really take.

A runtime that calls modules cannot stop one in the middle: a layer, or a piece of it, is one piece
of work, and a pass of the language model leaves gaps inside only where its modules offer points
(`offer`). So encoders run in the gaps between passes, and inside those whose kernels are given
(`fill_between_passes`). In exchange the language model may have any schedule, and layers and
microbatches any times.

What is planned inside a pass stands behind it, from where the runtime takes it, if nothing planned
before the pass' end waits for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np

from ..ir.kinds import BACKWARD, layer_kind
from ..ir.program import NO_MICROBATCH, Edge, Pass, Program
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Slot
from .encoder_plans import Host, group_ranks
from .gaps import Ints, find_gaps
from .instance import EncoderPipeline, FilledSchedule, FillProblem, StageKernels
from .search import Effort, fill_bubbles
from .setup import Kernel


def fill_program(host: Host, filled: FilledSchedule) -> Program:
    """Return the program of the first copy of the encoder pipelines, with its edges."""
    timed: list[list[tuple[tuple[int, int], Pass]]] = [
        [((slot.end_ns, -1), slot.what) for slot in row] for row in host.timeline.ranks
    ]
    edges: list[Edge] = []
    # Other copies of the pipelines, on other tensor-parallel GPUs, do the same.
    for p in filled.pipelines:
        if p.copy == 0:
            for rank, place, pass_ in _places(filled, host, p):
                timed[rank].append((place, pass_))
            edges += _edges(filled, host, p)
    rows = tuple(tuple(pass_ for _, pass_ in sorted(row, key=itemgetter(0))) for row in timed)
    # By what they join, so that a line of the text form holds the edges of one kind.
    edges.sort(key=lambda e: (e.source.stage, e.source.kind, e.target.stage, e.source.microbatch))
    name = f"{host.program.name} with encoders"
    return replace(host.program, ranks=rows, name=name, edges=tuple(edges))


def _places(
    filled: FilledSchedule, host: Host, p: EncoderPipeline
) -> Iterator[tuple[int, tuple[int, int], Pass]]:
    """Yield rank, place in time, and pass of every encoder layer.

    A place is when a pass ends or, behind a pass that it is inside of, when that does, and then
    when it ends itself.
    """
    needed = sorted(slot.start_ns for slot in _entering(host))
    ends = [np.array([slot.end_ns for slot in row], np.int64) for row in host.timeline.ranks]
    never = host.timeline.makespan_ns
    # By direction and microbatch, of what follows: its rank, its start, and the latest place.
    follows: dict[tuple[str, int], tuple[int, int, int]] = {}
    for rank, start, end, pass_ in sorted(_passes(filled, p), key=itemgetter(2), reverse=True):
        key, place = (pass_.kind[:2], pass_.microbatch), (end, 0)
        last = needed[pass_.microbatch] if key[0] == "EF" else never
        there, begins, limit = follows.get(key, (rank, last, last))
        at = int(np.searchsorted(ends[rank], end))
        if at < len(ends[rank]):
            slot = host.timeline.ranks[rank][at]
            inside = slot.start_ns < end and slot.what.microbatch != NO_MICROBATCH
            if inside and slot.end_ns <= (limit if there == rank else min(limit, begins)):
                place = (slot.end_ns, end)
        follows[key] = rank, start, min(limit, place[0] if place[1] else end - 1)
        yield rank, place, pass_


def _passes(filled: FilledSchedule, p: EncoderPipeline) -> Iterator[tuple[int, int, int, Pass]]:
    """Yield rank, planned start and end, and pass of every encoder layer."""
    up, down = filled.problem.forward.layers, filled.problem.backward.layers
    encoders = filled.problem.layers_of_encoders()
    all_layers = [number for layers, _ in encoders for number in layers]
    trained = [number for layers, yes in encoders for number in layers if yes]
    for direction, numbers, sizes, starts, ends in (
        ("EF", all_layers, up, p.forward, p.forward_end),
        ("EB", trained[::-1], down, p.backward, p.backward_end),
    ):
        last = np.cumsum(sizes, dtype=np.int64) - 1
        first = last - np.array(sizes, np.int64) + 1
        for at, microbatch in enumerate(p.microbatches):
            for stage, rank in enumerate(p.ranks):
                both = starts[at, stage, first].tolist(), ends[at, stage, last].tolist()
                for layer, start, end in zip(numbers, *both, strict=True):
                    yield rank, start, end, Pass(rank, layer_kind(direction, layer), microbatch)


def _entering(host: Host) -> list[Slot]:
    """Return the passes that need features, the forwards of the first stage, as they begin."""
    row = host.timeline.ranks[host.gaps.first_rank]
    slots = (slot for slot in row if slot.what.stage == 0 and slot.what.kind == "F")
    return sorted(slots, key=lambda slot: (slot.start_ns, slot.what))


def _edges(filled: FilledSchedule, host: Host, p: EncoderPipeline) -> Iterator[Edge]:
    entered = _entering(host)
    row = host.program.ranks[host.gaps.first_rank]
    # Passes that compute the gradient of the features.
    gradients = {p.microbatch: p for p in row if p.stage == 0 and p.kind in BACKWARD}
    for microbatch in p.microbatches:
        enters = entered[microbatch].what
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


@dataclass(frozen=True, slots=True)
class EncoderTimes:
    """The times of an encoder's layers, from its inputs up, in nanoseconds.

    `backward_ns`: empty for a frozen encoder. `permille`: each microbatch's cost, 1000 for the
    times given; all of them by default.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...] = ()
    permille: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not self.forward_ns or len(self.backward_ns) not in (0, len(self.forward_ns)):
            raise ValueError(
                f"an encoder has {len(self.forward_ns)} forward and {len(self.backward_ns)} "
                "backward times; give one for each layer, or none backward if it is frozen"
            )


def encoder_times(costs: Costs, layers: Sequence[int], *, width: int = 1) -> list[EncoderTimes]:
    """Return the encoders' times from those of their passes EF_A ..., by rank.

    `layers`: of each encoder. A layer's time is the mean over the ranks that run it. An encoder
    without times backward is frozen. Raises ValueError without times forward.

    >>> costs = Costs({"EF_A": [2, 4], "EF_B": [6, 6], "EB_B": [8, 10]})
    >>> encoder_times(costs, [1, 1])[1]
    EncoderTimes(forward_ns=(6,), backward_ns=(9,), permille=())
    """
    encoders, first = [], 0
    for count in layers:
        share = count // width
        places = [(n // share, layer_kind("", first + n % share)) for n in range(count)]
        forward, backward = (
            tuple(_mean(costs, direction + name, position, width) for position, name in places)
            for direction in ("EF", "EB")
        )
        if not all(forward):
            raise ValueError(
                f"the costs have no times of {count} encoder layers in pipelines of {width} ranks, "
                f"from EF{layer_kind('', first)} on; they have {' '.join(costs.pass_ns)}"
            )
        encoders.append(EncoderTimes(forward, backward if any(backward) else ()))
        first += share
    return encoders


def _mean(costs: Costs, kind: str, position: int, width: int) -> int:
    """Return the mean time of a pass on the ranks at a position of their encoder pipelines."""
    table = np.asarray(costs.pass_ns.get(kind, 0), np.int64)
    # One number is that of all ranks; a table may have a column for each microbatch.
    rows = (
        table.reshape(1, -1)
        if table.ndim < 2 and table.size == 1
        else table.reshape(len(table), -1)
    )
    times = rows[position::width] if len(rows) > 1 else rows
    return int(times[times > 0].mean()) if (times > 0).any() else 0


def fill_between_passes(
    program: Program,
    costs: Costs,
    encoders: Sequence[EncoderTimes],
    *,
    width: int = 1,
    inside: Mapping[str, Sequence[Kernel]] | None = None,
) -> tuple[Host, FilledSchedule]:
    """Fill the gaps between a program's passes with whole encoder layers, for `fill_program`.

    Takes the arguments of `with_encoders`, and raises as it does.
    """
    ranks = len(program.ranks)
    if width < 1 or ranks % width:
        raise ValueError(f"encoder pipelines of {width} ranks do not divide {ranks}; use a divisor")
    for encoder in encoders:
        if len(encoder.forward_ns) % width:
            raise ValueError(f"{len(encoder.forward_ns)} layers do not divide into {width} stages")
        if len(encoder.permille) not in (0, program.microbatches):
            raise ValueError(
                f"{len(encoder.permille)} costs for {program.microbatches} microbatches; give all"
            )
    timeline = simulate(program, costs)
    # Without a word about what is inside, a pass computes from its start to its end.
    host = Host(program, costs, timeline, find_gaps(timeline, inside or {}))
    forward = _work([encoder.forward_ns for encoder in encoders], encoders, ranks, width)
    trained = [encoder for encoder in encoders if encoder.backward_ns]
    rising = _work([encoder.backward_ns for encoder in trained], trained, ranks, width)
    # Backwards go down.
    backward = replace(rising, ns=np.ascontiguousarray(rising.ns[:, :, ::-1]))
    total = forward.ns.sum(axis=(0, 2)) + backward.ns.sum(axis=(0, 2))
    problem = FillProblem(
        gaps=host.gaps,
        groups=group_ranks(ranks, width),
        copies=1,
        forward=forward,
        backward=backward,
        hop_ns=int(np.max(costs.p2p_ns)),
        # Of a stage: the mean over the ranks, whose layers may differ.
        nominal_ns=np.broadcast_to(total // ranks, (program.microbatches,)),
        fixed=True,
        encoders=tuple(
            (len(part.forward_ns) // width, bool(part.backward_ns)) for part in encoders
        ),
    )
    return host, fill_bubbles(problem, Effort(max(1, timeline.makespan_ns // 10_000)))


def _work(
    times: Sequence[tuple[int, ...]], encoders: Sequence[EncoderTimes], ranks: int, width: int
) -> StageKernels:
    """Return whole layers as kernels, (ranks, microbatches or 1, layers of a stage)."""
    rows: list[Ints] = []
    equal = not any(encoder.permille for encoder in encoders)
    for position in range(width):
        parts = []
        for layers, encoder in zip(times, encoders, strict=True):
            share = len(layers) // width
            layer_ns = np.array(layers[position * share : (position + 1) * share], np.int64)
            scale = np.array([1000] if equal else encoder.permille or [1000], np.int64)
            parts.append(layer_ns[None] * scale[:, None] // 1000)
        most = max((len(part) for part in parts), default=1)
        wide = [np.broadcast_to(part, (most, part.shape[1])) for part in parts]
        rows.append(np.concatenate(wide, axis=1) if wide else np.zeros((1, 0), np.int64))
    # No pass takes no time: the order of what ends at one moment would be unclear.
    ns = np.maximum(np.stack([rows[rank % width] for rank in range(ranks)]), 1)
    count = ns.shape[2]
    none = np.zeros(count, np.int64)
    return StageKernels(none, np.ascontiguousarray(ns), none, layers=(1,) * count)


def with_encoders(
    program: Program,
    costs: Costs,
    encoders: Sequence[EncoderTimes],
    *,
    width: int = 1,
    inside: Mapping[str, Sequence[Kernel]] | None = None,
) -> Program:
    """Return the program with a pass for each layer of the encoders, in its gaps.

    `costs`: of the program's passes. `width`: the ranks of an encoder pipeline, each with an equal
    share of every encoder's layers. Encoders keep the order of the microbatches, which may differ.
    `inside`: by kind, the kernels of passes whose modules offer points where they communicate.
    Raises ValueError if `width` does not divide ranks and layers, and for programs whose gradients
    come in another order than their forwards.

    >>> from counterpoise.sched import schedule, unit_costs
    >>> program = schedule("1f1b", ranks=2, microbatches=2)
    >>> made = with_encoders(program, unit_costs(10, 20), [EncoderTimes((3, 3), (6, 6))])
    >>> print(*made.ranks[1])
    1EF_A1 1EF_B1 1F0 1B0 1F1 1B1 1EB_B1 1EB_A1
    """
    host, filled = fill_between_passes(program, costs, encoders, width=width, inside=inside)
    return fill_program(host, filled)
