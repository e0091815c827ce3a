"""Find what must be in one order at both ends: messages of two ranks, collectives of all ranks."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .program import Barrier, Program

Ints = NDArray[np.int64]


class CollectiveEntry(NamedTuple):
    """A rank's entry into a collective, (barrier, microbatch), at a position of its list."""

    position: int
    collective: tuple[str, int]

    def __str__(self) -> str:
        """Return the text of the collective's pass without its stage, such as CS3."""
        return f"{self.collective[0]}{self.collective[1]}"


class _Passes(Protocol):
    """The part of a graph, finished or not, from which channels are found."""

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
    """Yield the sends and the receives of every pair of ranks and direction, in program order.

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


def entered_collectives(program: Program) -> dict[str, dict[int, list[CollectiveEntry]]]:
    """Return the collectives that each rank enters, by communicator and rank, in program order.

    Before lowering, a rank enters a barrier with the pass that the barrier comes after.
    """
    present = {item.kind for row in program.ranks for item in row} if program.barriers else set()
    # The barriers that a rank enters with a pass of a kind.
    entered_by: dict[str, list[Barrier]] = {}
    for barrier in program.barriers:
        if barrier.name in present:
            entered_by.setdefault(barrier.name, []).append(barrier)
        elif barrier.source == "every":
            entered_by.setdefault(barrier.after, []).append(barrier)
    found: dict[str, dict[int, list[CollectiveEntry]]] = {}
    for rank, row in enumerate(program.ranks if entered_by else ()):
        for position, item in enumerate(row):
            for barrier in entered_by.get(item.kind, ()):
                by_rank = found.setdefault(barrier.communicator or barrier.name, {})
                entry = CollectiveEntry(position, (barrier.name, item.microbatch))
                by_rank.setdefault(rank, []).append(entry)
    return found
