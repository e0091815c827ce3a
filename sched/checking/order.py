"""Prove that no pass waits for a later one, on its own rank or in a cycle over several ranks."""

from collections.abc import Iterator

import numpy as np

from ..ir.channels import entered_collectives, message_channels
from ..ir.graph import Graph
from ..ir.paths import find_cycle, longest_paths
from ..ir.problem import Problem
from .completeness import culprit

_SHOWN = 20


def order(graph: Graph) -> Iterator[Problem]:
    """Check that on its own rank no pass comes before one that it needs."""
    inner = (graph.source < graph.passes) & (graph.target < graph.passes)
    source, target = graph.source[inner], graph.target[inner]
    back = (graph.rank[source] == graph.rank[target]) & (source > target)
    for late, early in zip(source[back][:_SHOWN].tolist(), target[back].tolist(), strict=False):
        what = f"{graph.name(early)} comes before {graph.name(late)}, which it needs"
        yield Problem("order", what, (culprit(graph, early), culprit(graph, late)))


def channels(graph: Graph) -> Iterator[Problem]:
    """Check that both ends of each one-way channel have the same messages in the same order."""
    for channel in message_channels(graph):
        sent, received = channel.sent.tolist(), channel.received.tolist()
        if sent == received:
            continue
        both = min(len(sent), len(received))
        # The first pair that differs, or the first message without a partner.
        at = next((i for i in range(both) if sent[i] != received[i]), both)
        ends = (channel.sends, channel.receives)
        marks = [int(nodes[at]) for nodes in ends if at < len(nodes)]
        if at < both:
            what = (
                f"{graph.name(marks[0])} meets {graph.name(marks[1])} on the channel from rank "
                f"{channel.source} to rank {channel.target}"
            )
        else:
            end = "receive" if at < len(sent) else "send"
            what = f"{graph.name(marks[0])} has no matching {end}"
        yield Problem("channels", what, tuple(culprit(graph, node) for node in marks))


def inputs(graph: Graph) -> Iterator[Problem]:
    """Check that every input of a pass is computed in the program and reaches it."""
    for node in graph.missing[:_SHOWN].tolist():
        what = f"{graph.name(node)} needs an input that no pass computes or sends to it"
        yield Problem("inputs", what, (culprit(graph, node),))


def collectives(graph: Graph) -> Iterator[Problem]:
    """Check that all ranks enter each communicator's collectives in one order."""
    for communicator, by_rank in entered_collectives(graph.program).items():
        (first_rank, first), *others = by_rank.items()
        for rank, entries in others:
            pairs = zip(first, entries, strict=False)
            different = ((one, two) for one, two in pairs if one.collective != two.collective)
            if pair := next(different, None):
                one, two = pair
                what = (
                    f"communicator {communicator}: rank {first_rank} enters {one} "
                    f"where rank {rank} enters {two}"
                )
                yield Problem(
                    "collectives", what, ((first_rank, one.position), (rank, two.position))
                )


def cycle(graph: Graph) -> Iterator[Problem]:
    """Check that no passes wait for each other in a cycle."""
    length = np.zeros(len(graph.source), np.int64)
    found = longest_paths(graph.source, graph.target, length, graph.nodes)
    if not found.stuck:
        return
    nodes = find_cycle(graph.source, graph.target, found.stuck)
    text = " -> ".join(graph.name(node) for node in [*nodes, nodes[0]])
    marks = tuple(culprit(graph, node) for node in nodes if node < graph.passes)
    yield Problem("cycle", f"deadlock: each of these waits for the one before it: {text}", marks)
