"""Compute memory over time: the buffers that passes take and free, and messages on their way.

It counts what an executor holds that frees each buffer at its last reader:

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

import numpy as np

from ..ir.channels import message_channels
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
    parts = (*_changes(graph, costs, start, end), *_messages(graph, costs, start, end))
    changes = [np.stack(part) for part in parts]
    table = np.concatenate(changes, axis=1) if changes else np.zeros((3, 0), np.int64)
    return tuple(_curve(int(parameters[r]), table[1:, table[0] == r]) for r in range(ranks))


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
    both = [min(len(one.sends), len(one.receives)) for one in channels]
    send = np.concatenate([one.sends[:n] for one, n in zip(channels, both, strict=True)])
    receive = np.concatenate([one.receives[:n] for one, n in zip(channels, both, strict=True)])
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
