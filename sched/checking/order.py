"""Proofs that nothing waits for what comes later, on one rank or around several."""

from collections.abc import Iterator

import numpy as np

from ..ir.channels import launches, message_channels
from ..ir.graph import Graph
from ..ir.paths import find_cycle, longest_paths
from ..ir.problem import Problem
from .complete import culprit

_SHOWN = 20


def order(graph: Graph) -> Iterator[Problem]:
    """On its own rank, nothing stands before what it needs."""
    inner = (graph.source < graph.passes) & (graph.target < graph.passes)
    source, target = graph.source[inner], graph.target[inner]
    back = (graph.rank[source] == graph.rank[target]) & (source > target)
    for late, early in zip(source[back][:_SHOWN].tolist(), target[back].tolist(), strict=False):
        what = f"{graph.name(early)} stands before {graph.name(late)}, which it needs"
        yield Problem("order", what, (culprit(graph, early), culprit(graph, late)))


def channels(graph: Graph) -> Iterator[Problem]:
    """What a rank sends to a peer, the peer receives, in that order."""
    for sent, got, step in message_channels(graph):
        wanted = [(int(graph.stage[n]) + step, int(graph.microbatch[n])) for n in sent]
        have = [(int(graph.stage[n]), int(graph.microbatch[n])) for n in got]
        if wanted == have:
            continue
        both = min(len(sent), len(got))
        at = next((i for i in range(both) if wanted[i] != have[i]), both)
        marks = [int(nodes[at]) for nodes in (sent, got) if at < len(nodes)]
        if at < both:
            what = f"{graph.name(marks[0])} meets {graph.name(marks[1])} on its channel"
        else:
            end = "receive" if at < len(sent) else "send"
            what = f"{graph.name(marks[0])} has no matching {end}"
        yield Problem("channels", what, tuple(culprit(graph, node) for node in marks))


def inputs(graph: Graph) -> Iterator[Problem]:
    """Every need is met by something in the program."""
    for node in graph.missing[:_SHOWN].tolist():
        what = f"nothing brings {graph.name(node)} what it needs"
        yield Problem("inputs", what, (culprit(graph, node),))


def collectives(graph: Graph) -> Iterator[Problem]:
    """All ranks enter each communicator's collectives in one order."""
    for communicator, by_rank in launches(graph.program).items():
        rows = sorted(by_rank.items())
        first_rank, first = rows[0]
        for rank, row in rows[1:]:
            for (at, one), (other, two) in zip(first, row, strict=False):
                if one != two:
                    what = (
                        f"communicator {communicator}: rank {first_rank} enters {one[0]}{one[1]} "
                        f"where rank {rank} enters {two[0]}{two[1]}"
                    )
                    yield Problem("collectives", what, ((first_rank, at), (rank, other)))
                    break


def cycle(graph: Graph) -> Iterator[Problem]:
    """No passes wait for each other in a circle."""
    length = np.zeros(len(graph.source), np.int64)
    found = longest_paths(graph.source, graph.target, length, graph.nodes)
    if not found.stuck:
        return
    nodes = find_cycle(graph.source, graph.target, found.stuck)
    text = " -> ".join(graph.name(node) for node in [*nodes, nodes[0]])
    marks = tuple(culprit(graph, node) for node in nodes if node < graph.passes)
    yield Problem("cycle", f"deadlock, each waits for the one before it: {text}", marks)
