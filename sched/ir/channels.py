"""What must be in one order at both ends: messages of a pair of ranks, collectives of all."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .program import Barrier, Program

Ints = NDArray[np.int64]
# Per communicator and rank: (index in the rank's list, (barrier, microbatch)).
Launches = dict[str, dict[int, list[tuple[int, tuple[str, int]]]]]


class _Passes(Protocol):
    """What a channel is found from: a graph, finished or not."""

    @property
    def program(self) -> Program: ...
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> Ints: ...
    @property
    def rank(self) -> Ints: ...
    @property
    def stage(self) -> Ints: ...


def message_channels(graph: _Passes) -> Iterator[tuple[Ints, Ints, int]]:
    """Of every pair of ranks and direction, the sends and the receives in their ranks' order.

    The third value is the step from the sending to the receiving stage: 1 for activations, -1 for
    gradients.
    """
    holder = np.array(graph.program.placement, np.int64)
    for send, receive, step in (("SEND_F", "RECV_F", 1), ("SEND_B", "RECV_B", -1)):
        if send not in graph.kinds and receive not in graph.kinds:
            continue
        ends = []
        for name, away in ((send, step), (receive, -step)):
            code = graph.kinds.index(name) if name in graph.kinds else -1
            nodes = np.flatnonzero(graph.kind == code)
            peer = graph.stage[nodes] + away
            inside = (peer >= 0) & (peer < len(holder))
            ends.append((nodes[inside], holder[peer[inside]]))
        (outs, there), (ins, here) = ends
        pairs = set(zip(graph.rank[outs].tolist(), there.tolist(), strict=True))
        pairs |= set(zip(here.tolist(), graph.rank[ins].tolist(), strict=True))
        for source, target in sorted(pairs):
            sent = outs[(graph.rank[outs] == source) & (there == target)]
            yield sent, ins[(here == source) & (graph.rank[ins] == target)], step


def launches(program: Program) -> Launches:
    """Per communicator and rank, the collectives that the rank enters, in its order.

    Each is (index in the rank's list, (barrier, microbatch)). Before lowering, a rank enters a
    barrier with the pass that the barrier comes after.
    """
    present = {item.kind for row in program.ranks for item in row} if program.barriers else set()
    enters: dict[str, list[Barrier]] = {}
    for barrier in program.barriers:
        if barrier.name in present:
            enters.setdefault(barrier.name, []).append(barrier)
        elif barrier.source == "every":
            enters.setdefault(barrier.after, []).append(barrier)
    found: Launches = {}
    for rank, row in enumerate(program.ranks if enters else ()):
        for at, item in enumerate(row):
            for barrier in enters.get(item.kind, ()):
                lane = found.setdefault(barrier.communicator or barrier.name, {})
                lane.setdefault(rank, []).append((at, (barrier.name, item.microbatch)))
    return found
