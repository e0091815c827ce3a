"""Find longest paths and cycles in a graph given as integer arrays."""

import numpy as np

from .channels import Ints


def longest_paths(
    source: Ints, target: Ints, length: Ints, count: int
) -> tuple[list[int], list[int]]:
    """Return the length of the longest path to each of `count` nodes, and the nodes that are stuck.

    It walks in topological order. Nodes on a cycle or after one are stuck: their lengths say
    nothing.

    >>> one = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([5, 1, 2])
    >>> longest_paths(*one, count=3)
    ([0, 5, 7], [])
    """
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(count + 1)).tolist()
    ends, lengths = target[order].tolist(), length[order].tolist()
    waiting = np.bincount(target, minlength=count).tolist()
    start = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    while ready:
        node = ready.pop()
        begin = start[node]
        for edge in range(first[node], first[node + 1]):
            end, arrival = ends[edge], begin + lengths[edge]
            if arrival > start[end]:
                start[end] = arrival
            waiting[end] -= 1
            if not waiting[end]:
                ready.append(end)
    return start, [node for node in range(count) if waiting[node] > 0]


def complete_paths(source: Ints, target: Ints, length: Ints, count: int) -> list[int]:
    """Return `longest_paths`. Raises ValueError if nodes wait for each other in a cycle."""
    start, stuck = longest_paths(source, target, length, count)
    if stuck:
        raise ValueError(
            f"deadlock: {len(stuck)} passes wait for each other; run check(program) to see the "
            "cycle"
        )
    return start


def find_cycle(source: Ints, target: Ints, stuck: list[int]) -> list[int]:
    """Return a cycle among the stuck nodes, in the direction of the edges.

    >>> find_cycle(np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]), [1, 2, 3])
    [2, 1]
    """
    inside = np.zeros(int(max(source.max(), target.max())) + 1, bool)
    inside[stuck] = True
    keep = inside[source] & inside[target]
    before = dict(zip(target[keep].tolist(), source[keep].tolist(), strict=True))
    node, seen = stuck[0], dict[int, int]()
    while node not in seen:
        seen[node] = len(seen)
        node = before[node]
    return list(reversed([n for n, at in seen.items() if at >= seen[node]]))
