"""Find longest paths and cycles in a graph given as integer arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Paths:
    """The longest path to every node.

    `start[n]`: the length of the longest path to node n. `before[n]`: the node before n on that
    path, -1 at its beginning. `stuck`: nodes on a cycle or after one, whose starts are undefined.
    """

    start: list[int]
    before: list[int]
    stuck: list[int]


def longest_paths(source: Ints, target: Ints, length: Ints, count: int) -> Paths:
    """Return the longest path to each of `count` nodes, by a walk in topological order.

    >>> one = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([5, 1, 2])
    >>> longest_paths(*one, count=3)
    Paths(start=[0, 5, 7], before=[-1, 0, 1], stuck=[])
    """
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(count + 1)).tolist()
    ends, lengths = target[order].tolist(), length[order].tolist()
    waiting = np.bincount(target, minlength=count).tolist()
    start, before = [0] * count, [-1] * count
    ready = [node for node in range(count) if not waiting[node]]
    while ready:
        node = ready.pop()
        begin = start[node]
        for edge in range(first[node], first[node + 1]):
            end, arrival = ends[edge], begin + lengths[edge]
            if arrival > start[end] or before[end] < 0:
                start[end], before[end] = arrival, node
            waiting[end] -= 1
            if not waiting[end]:
                ready.append(end)
    return Paths(start, before, [node for node in range(count) if waiting[node] > 0])


def complete_paths(source: Ints, target: Ints, length: Ints, count: int) -> Paths:
    """Return `longest_paths`. Raises ValueError if nodes wait for each other in a cycle."""
    found = longest_paths(source, target, length, count)
    if found.stuck:
        raise ValueError(
            f"deadlock: {len(found.stuck)} passes wait for each other; "
            "run check(program) to see the cycle"
        )
    return found


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
