"""The simulator: a program and its costs give a timeline, in integer nanoseconds.

Every pass starts as soon as the rank has ended the pass before it and what it needs is there, so
a start is the length of the longest path to it in the program's graph. What is counted:

- a pass takes `pass_ns`; on one rank passes never overlap and never change places;
- between ranks an input arrives `p2p_ns` after the pass that made it; links have no contention;
- a barrier starts when the last rank enters it and the communicator is free, and takes
  `collective_ns`;
- with `overlap=False` the sender is held until its message has arrived, and every barrier holds
  its ranks.
"""

import numpy as np

from ..ir.graph import Graph, Ints, make_graph
from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH, Pass
from ..ir.paths import longest_paths
from ..ir.program import Program
from .bubbles import count_bubbles
from .costs import Costs, expand
from .memory import memory_curves
from .timeline import Slot, Timeline


def simulate(program: Program, costs: Costs) -> Timeline:
    """Time every pass.

    Raises ValueError if a kind has no times, a number is not an integer of 0 or more, a table
    does not fit, or the program cannot run to its end (`check` says why).

    >>> from counterpoise.sched import unit_costs
    >>> from counterpoise.sched import schedule
    >>> timeline = simulate(schedule("1f1b", ranks=4, microbatches=8), unit_costs(1, 2))
    >>> timeline.makespan_ns, timeline.peak_bytes
    (33, (4, 3, 2, 1))
    """
    graph = make_graph(program)
    duration = durations(graph, costs)
    lag = lags(graph, costs)
    source, target = graph.source, graph.target
    if not costs.overlap:
        extra = _held(graph, lag)
        source, target, lag = (
            np.concatenate(pair) for pair in zip((source, target, lag), extra, strict=True)
        )
    found = longest_paths(source, target, lag + duration[source], graph.nodes)
    if found.stuck:
        raise ValueError(f"the program stops: {len(found.stuck)} passes wait in a circle; check it")
    start = np.array(found.start, np.int64)
    return _timeline(graph, costs, start, start + duration, found.best)


def durations(graph: Graph, costs: Costs) -> Ints:
    """How long every node takes. Raises ValueError as `simulate` does."""
    program = graph.program
    result = np.zeros(graph.nodes, np.int64)
    for code, name in enumerate(graph.kinds):
        added = is_kind(name) and kind(name).role != "compute"
        added = added or name in {barrier.name for barrier in program.barriers}
        if name not in costs.pass_ns and added:
            continue
        if name not in costs.pass_ns:
            have = " ".join(costs.pass_ns) or "none"
            raise ValueError(f"no times for kind {name!r}, which the program has; times: {have}")
        held = (
            len(program.ranks) if is_kind(name) and kind(name).scope == "rank" else program.stages
        )
        table = expand(f"times of {name}", costs.pass_ns[name], held, program.microbatches)
        nodes = np.flatnonzero(graph.kind == code)
        if outside := (nodes[graph.stage[nodes] >= held]).tolist():
            raise ValueError(
                f"{graph.name(outside[0])}: there are {held} stages; check the program"
            )
        column = np.where(graph.microbatch[nodes] == NO_MICROBATCH, 0, graph.microbatch[nodes])
        if len(nodes) and column.max() >= program.microbatches:
            raise ValueError(f"the program has microbatches up to {column.max()}; check it")
        result[nodes] = table[graph.stage[nodes], column]
    for at, barrier in enumerate(program.barriers):
        value = expand(
            f"time of barrier {barrier.name}", costs.collective_ns.get(barrier.name, 0), 1, 1
        )
        result[graph.passes + np.flatnonzero(graph.barrier == at)] = value[0, 0]
    return result


def lags(graph: Graph, costs: Costs) -> Ints:
    """How long every edge takes: the transfer where it crosses ranks, else nothing."""
    ranks = len(graph.program.ranks)
    table = expand("p2p_ns", costs.p2p_ns, ranks, ranks)
    result = np.zeros(len(graph.source), np.int64)
    crosses = np.flatnonzero(graph.sender >= 0)
    result[crosses] = table[graph.sender[crosses], graph.rank[graph.target[crosses]]]
    return result


def _held(graph: Graph, lag: Ints) -> tuple[Ints, Ints, Ints]:
    """The edges that make transfers and barriers hold their ranks."""
    chain = np.full(graph.passes, -1, np.int64)
    inner = np.flatnonzero(np.diff(graph.rank) == 0) if graph.passes else graph.start
    chain[inner] = inner + 1
    messages = np.flatnonzero(graph.sender >= 0)
    entries = np.flatnonzero((graph.source < graph.passes) & (graph.target >= graph.passes))
    holders = np.concatenate((graph.source[messages], graph.target[entries]))
    held = chain[np.concatenate((graph.source[messages], graph.source[entries]))]
    extra = np.concatenate((lag[messages], np.zeros(len(entries), np.int64)))
    keep = held >= 0
    return holders[keep], held[keep], extra[keep]


def _timeline(graph: Graph, costs: Costs, start: Ints, end: Ints, best: list[int]) -> Timeline:
    program = graph.program
    makespan = int(end.max()) if len(end) else 0
    starts, ends = start.tolist(), end.tolist()
    slots = []
    for rank, row in enumerate(program.ranks):
        at = int(graph.start[rank])
        times = zip(row, starts[at : at + len(row)], ends[at : at + len(row)], strict=True)
        slots.append(tuple(map(Slot._make, times)))
    return Timeline(
        name=program.name,
        placement=program.placement,
        ranks=tuple(slots),
        lanes=_lanes(graph, starts, ends),
        makespan_ns=makespan,
        bubbles=count_bubbles(graph, start, end, makespan),
        memory=memory_curves(graph, costs, start, end),
        critical=_critical(graph, starts, ends, best),
    )


def _slot(graph: Graph, node: int, starts: list[int], ends: list[int]) -> Slot:
    if node < graph.passes:
        rank = int(graph.rank[node])
        what = graph.program.ranks[rank][node - int(graph.start[rank])]
    else:
        at = node - graph.passes
        name = graph.program.barriers[graph.barrier[at]].name
        what = Pass(0, name, int(graph.barrier_microbatch[at]))
    return Slot(what, starts[node], ends[node])


def _lanes(graph: Graph, starts: list[int], ends: list[int]) -> dict[str, tuple[Slot, ...]]:
    lanes: dict[str, list[Slot]] = {}
    for at, index in enumerate(graph.barrier.tolist()):
        barrier = graph.program.barriers[index]
        lane = lanes.setdefault(barrier.communicator or barrier.name, [])
        lane.append(_slot(graph, graph.passes + at, starts, ends))
    return {
        name: tuple(sorted(lane, key=lambda slot: (slot.start_ns, slot.what.microbatch)))
        for name, lane in lanes.items()
    }


def _critical(
    graph: Graph, starts: list[int], ends: list[int], best: list[int]
) -> tuple[Slot, ...]:
    node = max(range(len(ends)), key=ends.__getitem__, default=-1)
    path = []
    while node >= 0:
        path.append(_slot(graph, node, starts, ends))
        node = best[node] if starts[node] > 0 else -1
    return tuple(reversed(path))
