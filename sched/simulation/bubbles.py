"""Count the idle time of ranks by cause, as `timeline` defines the causes."""

import numpy as np

from ..ir.graph import Graph, Ints
from ..ir.kinds import BACKWARD
from .timeline import Bubbles


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
    rest = gaps - travel
    warmup = int(rest[: first + 1].sum())
    steady = int(rest[first + 1 : last + 1].sum())
    cooldown = int(rest[max(first, last) + 1 :].sum()) + tail
    imbalance = min(steady, spare)
    return Bubbles(warmup, steady - imbalance, cooldown, imbalance, int(travel.sum()))


def _ready_without_transfers(graph: Graph, end: Ints) -> Ints:
    """Return the time at which each pass's inputs would be ready if transfers took no time."""
    result = np.zeros(graph.nodes, np.int64)
    plain = graph.source < graph.passes
    np.maximum.at(result, graph.target[plain], end[graph.source[plain]])
    # A barrier is a transfer, too: a pass that waits for one could have started when the barrier's
    # passes had ended. Barriers can follow barriers, so visit them in the order of their ends.
    rest = np.flatnonzero(~plain)
    rest = rest[np.lexsort((graph.target[rest] < graph.passes, end[graph.source[rest]]))]
    for source, target in zip(
        graph.source[rest].tolist(), graph.target[rest].tolist(), strict=True
    ):
        if result[source] > result[target]:
            result[target] = result[source]
    return result[: graph.passes]
