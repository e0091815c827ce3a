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

Memory is what an executor holds that frees each buffer at its last reader:

| buffer | holds | from | to |
| -- | -- | -- | -- |
| `activation` | what F saves for the backward, its input included | F's start | end of B or I |
| `recomputed` | what a backward computes again | its start | its end |
| `weight` | what I saves for W | I's end | W's end |
| `logits` | what S (or L) keeps, the last stage's output included | its start | end of T (or G) |
| `early` | the products that Algorithm 2's S makes early | its start | C's end |
| `encoder`, `encoder_A` ... | what EF, or a layer's EF, saves for EB | EF's start | EB's end |
| `words` | what IF keeps for IB | IF's start | IB's end |
| `message` | an activation or gradient sent to another rank | SEND | the transfer's end |
| | and where it is received | RECV | F's start, or end of B or I |
| `features` | the same for a result sent along an edge | | |

Messages are counted in lowered programs, since only those say when a receive is posted. While I
runs, activations become weight buffers layer by layer, so at any time it holds the larger of the
two and not both. A gradient that stays on its rank is not counted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..ir.channels import Ints, message_channels
from ..ir.graph import Graph, make_graph
from ..ir.kinds import BACKWARD, is_kind, is_ranked, kind
from ..ir.paths import complete_paths
from ..ir.program import NO_MICROBATCH, Pass, Program
from .costs import Costs, Table, expand
from .timeline import Bubbles, Curve, Slot, Timeline


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
    times = node_times(graph, costs)
    starts, ends = times.start.tolist(), times.end.tolist()
    makespan = max(ends, default=0)
    rows = []
    for rank, row in enumerate(program.ranks):
        at = int(graph.start[rank])
        passes = zip(row, starts[at : at + len(row)], ends[at : at + len(row)], strict=True)
        rows.append(tuple(map(Slot._make, passes)))
    return Timeline(
        name=program.name,
        placement=program.placement,
        ranks=tuple(rows),
        lanes=_lanes(graph, starts, ends),
        makespan_ns=makespan,
        bubbles=count_bubbles(graph, times.start, times.end, makespan),
        memory=memory_curves(graph, costs, times.start, times.end),
    )


class NodeTimes(NamedTuple):
    """When each pass and barrier of a graph starts and ends."""

    start: Ints
    end: Ints


def node_times(graph: Graph, costs: Costs) -> NodeTimes:
    """Return the times of all nodes: all that lowering asks for. Raises as `simulate` does."""
    duration = node_durations(graph, costs)
    delay = transfer_delays(graph, costs)
    source, target = graph.source, graph.target
    if not costs.overlap:
        blocking = _blocking_edges(graph, delay)
        source, target, delay = (
            np.concatenate(pair) for pair in zip((source, target, delay), blocking, strict=True)
        )
    length = delay + duration[source]
    start = np.array(complete_paths(source, target, length, graph.nodes), np.int64)
    return NodeTimes(start, start + duration)


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
    ranked = is_ranked(name)
    rows = len(program.ranks) if ranked else program.stages
    table = expand(f"times of {name}", times, rows, program.microbatches)
    if outside := nodes[graph.stage[nodes] >= rows].tolist():
        stray = f"{graph.name(outside[0])}: there are {rows} {'ranks' if ranked else 'stages'}"
        raise ValueError(f"{stray}; run check(program)")
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


def _slot(graph: Graph, node: int, starts: list[int], ends: list[int]) -> Slot:
    if node < graph.passes:
        rank = int(graph.rank[node])
        pass_ = graph.program.ranks[rank][node - int(graph.start[rank])]
    else:
        at = node - graph.passes
        name = graph.program.barriers[graph.barrier[at]].name
        pass_ = Pass(0, name, int(graph.barrier_microbatch[at]))
    return Slot(pass_, starts[node], ends[node])


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


def count_bubbles(graph: Graph, start: Ints, end: Ints, makespan_ns: int) -> tuple[Bubbles, ...]:
    """Return every rank's bubbles. `start`, `end`: ns of every node of the graph."""
    ready = _ready_without_transfers(graph, end)
    work = np.zeros(len(graph.start), np.int64)
    np.add.at(work, graph.rank, (end - start)[: graph.passes])
    borders = [*graph.start.tolist(), graph.passes]
    result = []
    for rank in range(len(graph.start)):
        row = slice(borders[rank], borders[rank + 1])
        # The time from which the rank was free for each of its passes, and after the last one.
        free = np.concatenate(([0], end[row]))
        gaps = start[row] - free[:-1]
        # Inputs include the pass in front of it: none is ready before the rank is free.
        travel = start[row] - ready[row]
        tail = makespan_ns - int(free[-1])
        spare = int(work.max() - work[rank])
        result.append(bubbles_by_cause(graph.kinds, graph.kind[row], gaps, travel, tail, spare))
    return tuple(result)


def bubbles_by_cause(
    kinds: tuple[str, ...], kind: Ints, gaps: Ints, travel: Ints, tail: int, spare: int
) -> Bubbles:
    """Return a rank's bubbles.

    `kind`: of each pass. `gaps`: idle ns before it. `travel`: the part of them spent waiting for
    transfers. `tail`: idle ns at the end. `spare`: the work it has less than the busiest rank.
    """
    backward = np.flatnonzero(np.isin(kind, [kinds.index(k) for k in BACKWARD if k in kinds]))
    forward = np.flatnonzero(kind == kinds.index("F")) if "F" in kinds else backward[:0]
    first = int(backward[0]) if len(backward) else len(kind)
    last = int(forward[-1]) if len(forward) else -1
    idle = gaps - travel
    warmup = int(idle[: first + 1].sum())
    steady = int(idle[first + 1 : last + 1].sum())
    cooldown = int(idle[max(first, last) + 1 :].sum()) + tail
    imbalance = min(steady, spare)
    return Bubbles(warmup, steady - imbalance, cooldown, imbalance, int(travel.sum()))


def _ready_without_transfers(graph: Graph, end: Ints) -> Ints:
    """Return the time at which each pass's inputs would be ready if transfers took no time."""
    result = np.zeros(graph.nodes, np.int64)
    plain = graph.source < graph.passes
    np.maximum.at(result, graph.target[plain], end[graph.source[plain]])
    # A barrier is a transfer, too: a pass that waits for one could have started when the barrier's
    # passes had ended. Barriers can follow barriers, so visit them in the order of their ends.
    sources, targets = graph.source[~plain], graph.target[~plain]
    order = np.lexsort((targets < graph.passes, end[sources]))
    for source, target in zip(sources[order].tolist(), targets[order].tolist(), strict=True):
        if result[source] > result[target]:
            result[target] = result[source]
    return result[: graph.passes]


def memory_curves(graph: Graph, costs: Costs, start: Ints, end: Ints) -> tuple[Curve, ...]:
    """Return every rank's curve: its parameters throughout, plus the buffers that passes hold.

    Within a nanosecond buffers are freed before others are taken.
    """
    ranks = len(graph.program.ranks)
    parameters = expand("parameter_bytes", costs.parameter_bytes, ranks, 1)[:, 0]
    parts = (*_changes(graph, costs, start, end), *_messages(graph, costs, start, end))
    changes = [np.stack(part) for part in parts]
    table = np.concatenate(changes, axis=1) if changes else np.zeros((3, 0), np.int64)
    table = table[:, np.argsort(table[0], kind="stable")]
    changes_by_rank = np.split(table[1:], np.searchsorted(table[0], np.arange(1, ranks)), axis=1)
    return tuple(map(_curve, parameters.tolist(), changes_by_rank))


def _changes(
    graph: Graph, costs: Costs, start: Ints, end: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (rank, ns, bytes) arrays, one for each kind and buffer."""
    program = graph.program
    present = [kind(name) for name in graph.kinds if is_kind(name)]
    ending = {buffer for known in present for buffer in known.frees}
    for known in present:
        code = graph.kinds.index(known.name)
        rows = len(program.ranks) if known.scope == "rank" else program.stages
        nodes = np.flatnonzero((graph.kind == code) & (graph.microbatch != NO_MICROBATCH))
        moments = (known.takes, start, 1), (known.frees, end, -1), (known.leaves, end, 1)
        for buffers, times, sign in moments:
            # What no pass of the program reads is not kept, such as a frozen encoder's activations.
            for buffer in filter(ending.__contains__, buffers):
                table = costs.buffer_bytes.get(buffer, 0)
                size = expand(f"bytes of {buffer}", table, rows, program.microbatches)
                held = size[graph.stage[nodes], graph.microbatch[nodes]]
                yield graph.rank[nodes], times[nodes], sign * held


def _messages(
    graph: Graph, costs: Costs, start: Ints, end: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (rank, ns, bytes) arrays of the messages of a lowered program, at both their ends."""
    channels = list(message_channels(graph))
    if not channels or not {"message", "features"} & set(costs.buffer_bytes):
        return
    ranks = len(graph.program.ranks)
    # A message without a partner is `check`'s to report.
    counted = [(channel, min(len(channel.sends), len(channel.receives))) for channel in channels]
    send = np.concatenate([channel.sends[:n] for channel, n in counted])
    receive = np.concatenate([channel.receives[:n] for channel, n in counted])
    size = _message_bytes(graph, costs, send)
    delay = expand("p2p_ns", costs.p2p_ns, ranks, ranks)[graph.rank[send], graph.rank[receive]]
    sent, used = np.zeros(graph.passes, np.int64), np.zeros(graph.passes, np.int64)
    # A result is sent to several ranks from one buffer, which is free after the last transfer.
    np.maximum.at(sent, send, np.maximum(end[send], end[receive]) + delay)
    source, user = graph.received
    is_forward = np.array(graph.kinds)[graph.kind[user]] == "F"
    np.maximum.at(used, source, np.where(is_forward, start[user], end[user]))
    once, first = np.unique(send, return_index=True)
    for node, bytes_, last in ((once, size[first], sent), (receive, size, used)):
        yield graph.rank[node], start[node], bytes_
        yield graph.rank[node], last[node], -bytes_


def _message_bytes(graph: Graph, costs: Costs, send: Ints) -> Ints:
    """Return the size of the message of each of these SENDs."""
    program = graph.program
    codes = [code for code, name in enumerate(graph.kinds) if name.startswith("SEND_X_")]
    on_edge, microbatch = np.isin(graph.kind[send], codes), graph.microbatch[send]
    size = np.zeros(len(send), np.int64)
    # Features are listed by the rank that sends them, messages between stages by the stage.
    for buffer, rows, chosen, row in (
        ("features", len(program.ranks), on_edge, graph.rank[send]),
        ("message", program.stages, ~on_edge, graph.stage[send]),
    ):
        table = costs.buffer_bytes.get(buffer, 0)
        known = expand(f"bytes of {buffer}", table, rows, program.microbatches)
        size[chosen] = known[row[chosen], microbatch[chosen]]
    return size


def _curve(parameters: int, changes: Ints) -> Curve:
    times, sizes = changes[:, changes[1] != 0]
    order = np.lexsort((sizes, times))
    times, held = times[order], parameters + np.cumsum(sizes[order])
    last = np.flatnonzero(np.diff(times, append=-1))
    points = list(zip(times[last].tolist(), held[last].tolist(), strict=True))
    return tuple(points if points and points[0][0] == 0 else [(0, parameters), *points])
