"""Compute memory over time: passes take buffers when they start and free them when they end."""

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Ints
from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH
from .costs import Costs, expand
from .timeline import Curve


def memory_curves(graph: Graph, costs: Costs, start: Ints, end: Ints) -> tuple[Curve, ...]:
    """Return every rank's curve: its parameters throughout, plus the buffers that passes hold.

    Within a nanosecond buffers are freed before others are taken.
    """
    ranks = len(graph.program.ranks)
    parameters = expand("parameter_bytes", costs.parameter_bytes, ranks, 1)[:, 0]
    changes = [np.stack(change) for change in _changes(graph, costs, start, end)]
    table = np.concatenate(changes, axis=1) if changes else np.zeros((3, 0), np.int64)
    return tuple(_curve(int(parameters[r]), table[1:, table[0] == r]) for r in range(ranks))


def _changes(
    graph: Graph, costs: Costs, start: Ints, end: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (rank, ns, bytes) arrays, one for each kind and buffer."""
    program = graph.program
    for code, name in enumerate(graph.kinds):
        if not is_kind(name):
            continue
        known = kind(name)
        rows = len(program.ranks) if known.scope == "rank" else program.stages
        nodes = np.flatnonzero((graph.kind == code) & (graph.microbatch != NO_MICROBATCH))
        for buffers, times, sign in ((known.takes, start, 1), (known.frees, end, -1)):
            for buffer in buffers:
                table = costs.buffer_bytes.get(buffer, 0)
                size = expand(f"bytes of {buffer}", table, rows, program.microbatches)
                held = size[graph.stage[nodes], graph.microbatch[nodes]]
                yield graph.rank[nodes], times[nodes], sign * held


def _curve(parameters: int, changes: Ints) -> Curve:
    times, sizes = changes[:, changes[1] != 0]
    order = np.lexsort((sizes, times))
    times, held = times[order], parameters + np.cumsum(sizes[order])
    last = np.flatnonzero(np.diff(times, append=-1))
    points = list(zip(times[last].tolist(), held[last].tolist(), strict=True))
    return tuple(points if points and points[0][0] == 0 else [(0, parameters), *points])
