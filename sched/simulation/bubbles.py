"""Idle time by cause, as `timeline` defines it."""

import numpy as np

from ..ir.graph import Graph, Ints
from ..ir.kinds import BACKWARD
from .timeline import Bubbles


def count_bubbles(graph: Graph, start: Ints, end: Ints, makespan_ns: int) -> tuple[Bubbles, ...]:
    """Every rank's bubbles. `start`, `end`: ns of every node of the graph."""
    waits = _without_transfers(graph, end)
    work = np.zeros(len(graph.start), np.int64)
    np.add.at(work, graph.rank, (end - start)[: graph.passes])
    borders = [*graph.start.tolist(), graph.passes]
    result = []
    for rank in range(len(graph.start)):
        rows = slice(borders[rank], borders[rank + 1])
        gaps = (
            start[rows] - np.concatenate(([0], end[rows][:-1]))
            if rows.stop > rows.start
            else start[rows]
        )
        before = np.concatenate(([0], end[rows][:-1])) if len(gaps) else gaps
        travel = start[rows] - np.maximum(before, waits[rows])
        tail = makespan_ns - int(end[rows][-1]) if len(gaps) else makespan_ns
        spare = int(work.max() - work[rank])
        result.append(_sort(graph.kinds, graph.kind[rows], gaps, travel, tail, spare))
    return tuple(result)


def _sort(
    kinds: tuple[str, ...], kind: Ints, gaps: Ints, travel: Ints, tail: int, spare: int
) -> Bubbles:
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


def _without_transfers(graph: Graph, end: Ints) -> Ints:
    """When a pass could have started, as far as its inputs go, had nothing had to travel."""
    result = np.zeros(graph.nodes, np.int64)
    plain = graph.source < graph.passes
    np.maximum.at(result, graph.target[plain], end[graph.source[plain]])
    # Barriers travel: what waits for one could have started when its passes had ended. A barrier
    # can follow barriers, so this goes through them in the order of their ends.
    rest = np.flatnonzero(~plain)
    rest = rest[np.lexsort((graph.target[rest] < graph.passes, end[graph.source[rest]]))]
    for source, target in zip(
        graph.source[rest].tolist(), graph.target[rest].tolist(), strict=True
    ):
        if result[source] > result[target]:
            result[target] = result[source]
    return result[: graph.passes]
