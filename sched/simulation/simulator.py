"""Simulate a program with its costs: a timeline in integer nanoseconds.

Every pass starts as soon as its rank has ended the pass before it and its inputs have arrived, so
its start is the length of the longest path to it in the program's graph. The rules:

- a pass takes `pass_ns`; on one rank passes never overlap and never change places;
- an input from another rank arrives `p2p_ns` after its pass has ended, and in a lowered program
  after its RECV has been posted; links have no contention;
- a barrier starts when the last rank enters it and the communicator is free, and takes
  `collective_ns`;
- with `overlap=False` a sender is blocked until its message has arrived, and every barrier blocks
  its ranks.
"""

import numpy as np

from ..ir.graph import Graph, Ints, make_graph
from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH, Pass
from ..ir.paths import longest_paths
from ..ir.program import Program
from .bubbles import count_bubbles
from .costs import Costs, Table, expand
from .memory import memory_curves
from .timeline import Slot, Timeline


def simulate(program: Program, costs: Costs) -> Timeline:
    """Return the timeline of a program.

    Raises ValueError if a kind has no times, a number is not an integer of 0 or more, a table
    has the wrong size, or the program cannot run to its end (`check` shows why).

    >>> from counterpoise.sched import unit_costs
    >>> from counterpoise.sched import schedule
    >>> timeline = simulate(schedule("1f1b", ranks=4, microbatches=8), unit_costs(1, 2))
    >>> timeline.makespan_ns, timeline.peak_bytes
    (33, (4, 3, 2, 1))
    """
    graph = make_graph(program)
    duration = node_durations(graph, costs)
    delay = transfer_delays(graph, costs)
    source, target = graph.source, graph.target
    if not costs.overlap:
        blocking = _blocking_edges(graph, delay)
        source, target, delay = (
            np.concatenate(pair) for pair in zip((source, target, delay), blocking, strict=True)
        )
    found = longest_paths(source, target, delay + duration[source], graph.nodes)
    if found.stuck:
        raise ValueError(
            f"deadlock: {len(found.stuck)} passes wait for each other; "
            "run check(program) to see the cycle"
        )
    start = np.array(found.start, np.int64)
    return _timeline(graph, costs, start, start + duration, found.before)


def node_durations(graph: Graph, costs: Costs) -> Ints:
    """Return the time of every pass and barrier. Raises ValueError as `simulate` does."""
    program = graph.program
    result = np.zeros(graph.nodes, np.int64)
    barriers = {barrier.name for barrier in program.barriers}
    for code, name in enumerate(graph.kinds):
        if name in costs.pass_ns:
            nodes = np.flatnonzero(graph.kind == code)
            result[nodes] = _pass_times(graph, name, nodes, costs.pass_ns[name])
        elif name not in barriers and not (is_kind(name) and kind(name).role != "compute"):
            # Passes that lowering adds take no time of the rank unless the costs have any.
            have = " ".join(costs.pass_ns) or "none"
            raise ValueError(f"no times for kind {name!r}, which the program has; times: {have}")
    for at, barrier in enumerate(program.barriers):
        ns = costs.collective_ns.get(barrier.name, 0)
        value = expand(f"time of barrier {barrier.name}", ns, 1, 1)
        result[graph.passes + np.flatnonzero(graph.barrier == at)] = value[0, 0]
    return result


def _pass_times(graph: Graph, name: str, nodes: Ints, times: Table) -> Ints:
    """Return the times of the passes of a kind, looked up in its table."""
    program = graph.program
    ranked = is_kind(name) and kind(name).scope == "rank"
    rows = len(program.ranks) if ranked else program.stages
    table = expand(f"times of {name}", times, rows, program.microbatches)
    if outside := nodes[graph.stage[nodes] >= rows].tolist():
        what = f"{graph.name(outside[0])}: there are {rows} {'ranks' if ranked else 'stages'}"
        raise ValueError(f"{what}; run check(program)")
    column = np.where(graph.microbatch[nodes] == NO_MICROBATCH, 0, graph.microbatch[nodes])
    if len(nodes) and column.max() >= program.microbatches:
        raise ValueError(
            f"a pass has microbatch {column.max()}, the program has {program.microbatches}; "
            "run check(program)"
        )
    return table[graph.stage[nodes], column]


def transfer_delays(graph: Graph, costs: Costs) -> Ints:
    """Return the time of the transfer on every edge, 0 within a rank."""
    ranks = len(graph.program.ranks)
    table = expand("p2p_ns", costs.p2p_ns, ranks, ranks)
    result = np.zeros(len(graph.source), np.int64)
    crosses = np.flatnonzero(graph.sender >= 0)
    result[crosses] = table[graph.sender[crosses], graph.rank[graph.target[crosses]]]
    return result


def _blocking_edges(graph: Graph, delay: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (sources, targets, delays) of the edges that make transfers and barriers block.

    They lead to the pass after the sending or entering one on its rank.
    """
    following = np.full(graph.passes, -1, np.int64)
    inner = np.flatnonzero(np.diff(graph.rank) == 0) if graph.passes else graph.start
    following[inner] = inner + 1
    sent = np.full(len(graph.source), -1, np.int64)
    passes = graph.source < graph.passes
    sent[passes] = graph.rank[graph.source[passes]]
    messages = np.flatnonzero((graph.sender >= 0) & (graph.sender == sent))
    entries = np.flatnonzero((graph.source < graph.passes) & (graph.target >= graph.passes))
    source = np.concatenate((graph.source[messages], graph.target[entries]))
    target = following[np.concatenate((graph.source[messages], graph.source[entries]))]
    delays = np.concatenate((delay[messages], np.zeros(len(entries), np.int64)))
    # A rank's last pass blocks nothing.
    keep = target >= 0
    return source[keep], target[keep], delays[keep]


def _timeline(graph: Graph, costs: Costs, start: Ints, end: Ints, before: list[int]) -> Timeline:
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
        critical=_critical_path(graph, starts, ends, before),
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
    """Return each communicator's collectives in order."""
    lanes: dict[str, list[Slot]] = {}
    for at, index in enumerate(graph.barrier.tolist()):
        barrier = graph.program.barriers[index]
        lane = lanes.setdefault(barrier.communicator or barrier.name, [])
        lane.append(_slot(graph, graph.passes + at, starts, ends))
    return {
        name: tuple(sorted(lane, key=lambda slot: (slot.start_ns, slot.what.microbatch)))
        for name, lane in lanes.items()
    }


def _critical_path(
    graph: Graph, starts: list[int], ends: list[int], before: list[int]
) -> tuple[Slot, ...]:
    """Return the longest path to the node that ends last, from a start at 0."""
    node = max(range(len(ends)), key=ends.__getitem__, default=-1)
    path = []
    while node >= 0:
        path.append(_slot(graph, node, starts, ends))
        node = before[node] if starts[node] > 0 else -1
    return tuple(reversed(path))
