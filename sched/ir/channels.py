"""Find what must be in one order at both ends: messages of two ranks, collectives of all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .program import Barrier, Pass, Program

Ints = NDArray[np.int64]


class CollectiveEntry(NamedTuple):
    """A rank's entry into a collective, (barrier, microbatch), at a position of its list."""

    position: int
    collective: tuple[str, int]

    def __str__(self) -> str:
        """Return the text of the collective's pass without its stage, such as CS3."""
        return f"{self.collective[0]}{self.collective[1]}"


class Messages(NamedTuple):
    """The messages of a channel from one rank to another, in program order at each end.

    A channel is one-way: activations, gradients and results along edges that go from `source` to
    `target` share it. `sends`, `receives`: the passes, as numbered in the graph. `sent`,
    `received`: which message each of them is about; equal numbers are the same message.
    """

    source: int
    target: int
    sends: Ints
    receives: Ints
    sent: Ints
    received: Ints


@dataclass(frozen=True, slots=True)
class Nodes:
    """A program's passes, rank by rank, as arrays; `kind` is an index into `kinds`."""

    program: Program
    kinds: tuple[str, ...]
    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints


class _Ends(NamedTuple):
    """Sends or receives: (node, sending rank, receiving rank, message), an array each."""

    node: Ints
    source: Ints
    target: Ints
    message: Ints


def message_channels(graph: Nodes) -> Iterator[Messages]:
    """Yield the messages of every channel of a lowered program, sorted by (source, target)."""
    size = 1 + max(len(graph.program.ranks), len(graph.program.placement))
    sends = _join([*_stage_ends(graph, "SEND"), *_edge_ends(graph, "SEND_X_")])
    receives = _join([*_stage_ends(graph, "RECV"), *_edge_ends(graph, "RECV_X_")])
    sent, received = sends.source * size + sends.target, receives.source * size + receives.target
    for channel in np.union1d(sent, received).tolist():
        here, there = sent == channel, received == channel
        source, target = divmod(channel, size)
        yield Messages(
            source,
            target,
            sends.node[here],
            receives.node[there],
            sends.message[here],
            receives.message[there],
        )


def _join(parts: list[_Ends]) -> _Ends:
    """Return all parts' ends, in the order of the nodes: that of every rank's list."""
    columns = [np.concatenate([part[i] for part in parts]) for i in range(4)]
    order = np.argsort(columns[0], kind="stable")
    return _Ends(*(column[order] for column in columns))


def _stage_ends(graph: Nodes, end: str) -> Iterator[_Ends]:
    """Yield the ends of messages between neighbouring stages."""
    holder = np.array(graph.program.placement, np.int64)
    for code, (name, step) in enumerate((("F", 1), ("B", -1))):
        kind = f"{end}_{name}"
        at = graph.kinds.index(kind) if kind in graph.kinds else -1
        node = np.flatnonzero(graph.kind == at)
        # A message is named by the stage that receives it.
        stage = graph.stage[node] + (step if end == "SEND" else 0)
        inside = (stage >= 0) & (stage < len(holder)) & (stage - step >= 0)
        inside &= stage - step < len(holder)
        node, stage = node[inside], stage[inside]
        message = (graph.microbatch[node] * len(holder) + stage) * 2 + code
        yield _Ends(node, holder[stage - step], holder[stage], message)


def _edge_ends(graph: Nodes, prefix: str) -> Iterator[_Ends]:
    """Yield the ends of messages along the program's edges.

    A SEND has an end for each rank that an edge leads to; the message is numbered by its source.
    """
    carriers = {code: name for code, name in enumerate(graph.kinds) if name.startswith(prefix)}
    if not carriers:
        return
    readers: dict[Pass, list[int]] = {}
    number: dict[Pass, int] = {}
    for source, target in crossing_results(graph.program):
        readers.setdefault(source, []).append(target)
        number.setdefault(source, len(number))
    rows: list[tuple[int, int, int, int]] = []
    for node in np.flatnonzero(np.isin(graph.kind, list(carriers))).tolist():
        name = carriers[int(graph.kind[node])].removeprefix(prefix)
        source = Pass(int(graph.stage[node]), name, int(graph.microbatch[node]))
        here, home = int(graph.rank[node]), graph.program.rank_of(source)
        targets = readers.get(source, [])
        if prefix == "RECV_X_":
            targets = [target for target in targets if target == here]
        rows += [(node, home, target, -1 - number[source]) for target in targets]
    yield _Ends(*np.array(rows, np.int64).reshape(-1, 4).T)


def crossing_results(program: Program) -> Iterator[tuple[Pass, int]]:
    """Yield each pass whose result an edge takes to another rank, with that rank, once each."""
    seen: set[tuple[Pass, int]] = set()
    for source, target in program.edges:
        here, there = program.rank_of(source), program.rank_of(target)
        # A rank that does not exist (-1) is `references`' to report.
        if here != there and min(here, there) >= 0 and (source, there) not in seen:
            seen.add((source, there))
            yield source, there


def entered_collectives(program: Program) -> dict[str, dict[int, list[CollectiveEntry]]]:
    """Return the collectives that each rank enters, by communicator and rank, in program order.

    Before lowering, a rank enters a barrier with the pass that the barrier comes after.
    """
    present = {pass_.kind for row in program.ranks for pass_ in row} if program.barriers else set()
    # The barriers that a rank enters with a pass of a kind.
    entered_by: dict[str, list[Barrier]] = {}
    for barrier in program.barriers:
        if barrier.name in present:
            entered_by.setdefault(barrier.name, []).append(barrier)
        elif barrier.source == "every":
            entered_by.setdefault(barrier.after, []).append(barrier)
    collectives: dict[str, dict[int, list[CollectiveEntry]]] = {}
    for rank, row in enumerate(program.ranks if entered_by else ()):
        for position, pass_ in enumerate(row):
            for barrier in entered_by.get(pass_.kind, ()):
                by_rank = collectives.setdefault(barrier.communicator or barrier.name, {})
                entry = CollectiveEntry(position, (barrier.name, pass_.microbatch))
                by_rank.setdefault(rank, []).append(entry)
    return collectives
