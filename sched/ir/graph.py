"""The graph of a program: which pass waits for which.

`check` and `simulate` both read this graph, so what is proved is what is timed. Its nodes are the
passes, rank by rank, then the barriers, microbatch by microbatch. Its edges are

- the chain of each rank: a pass waits for the one before it;
- the needs of each kind (`kinds`); between ranks the input travels (`p2p`);
- the barriers: they wait for their passes on all ranks, and for the collective that any of those
  ranks started before them on the same communicator; other passes wait for them;
- in a lowered program, a need that crosses ranks goes through its SEND and RECV: the k-th receive
  from a peer gets what that peer sent k-th.

A program that can run is one whose graph has no cycle. Everything is integer arrays: there can be
a hundred thousand passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .channels import message_channels
from .kinds import BACKWARD, Need, is_kind, kind
from .passes import NO_MICROBATCH
from .program import Barrier, Program

Ints = NDArray[np.int64]
_SHIFT = {"same": 0, "previous": -1, "next": 1}
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges. Nodes [0, passes) are passes, the rest barriers.

    `rank`, `stage`, `kind`, `microbatch`: per pass, `kind` an index into `kinds`. `barrier` and
    `barrier_microbatch`: per barrier node, `barrier` an index into the program's. `source`,
    `target`: per edge. `sender`: per edge that crosses ranks the sending rank, else -1.
    `missing`: passes whose need is nowhere in the program. `start`: index of each rank's first.
    """

    program: Program
    kinds: tuple[str, ...]
    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    barrier: Ints
    barrier_microbatch: Ints
    source: Ints
    target: Ints
    sender: Ints
    missing: Ints
    start: Ints

    @property
    def passes(self) -> int:
        """How many nodes are passes."""
        return len(self.rank)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.rank) + len(self.barrier)

    def name(self, node: int) -> str:
        """A node in text: a pass, or a barrier and its microbatch.

        A barrier is written like a pass without a stage, such as `CS3`.
        """
        if node < self.passes:
            rank = int(self.rank[node])
            return str(self.program.ranks[rank][node - int(self.start[rank])])
        at = node - self.passes
        return f"{self.program.barriers[self.barrier[at]].name}{self.barrier_microbatch[at]}"


class _Builder:
    """Collects edges; lives only while a graph is built."""

    def __init__(self, program: Program) -> None:
        rows = [item for row in program.ranks for item in row]
        codes: dict[str, int] = {}
        self.program = program
        self.kind = np.array([codes.setdefault(p.kind, len(codes)) for p in rows], np.int64)
        self.codes = codes
        self.kinds = tuple(codes)
        self.stage = np.array([p.stage for p in rows], np.int64)
        self.microbatch = np.array([p.microbatch for p in rows], np.int64)
        lengths = np.array([len(row) for row in program.ranks], np.int64)
        self.rank = np.repeat(np.arange(len(lengths)), lengths)
        self.start = np.concatenate(([0], np.cumsum(lengths)))[: len(lengths)].astype(np.int64)
        self.rows_high = max(program.stages, len(program.ranks))
        self.edges: list[tuple[Ints, Ints, Ints]] = []
        self.missing: list[Ints] = []
        self.tables = {name: self._table(code) for name, code in codes.items()}

    def _table(self, code: int) -> Ints:
        """Node by (stage, microbatch) of a kind, -1 where there is none."""
        table = np.full((self.rows_high, self.program.microbatches), -1, np.int64)
        nodes = np.flatnonzero(self.kind == code)
        keep = (self.stage[nodes] < table.shape[0]) & (self.microbatch[nodes] < table.shape[1])
        nodes = nodes[keep & (self.microbatch[nodes] != NO_MICROBATCH)]
        table[self.stage[nodes], self.microbatch[nodes]] = nodes
        return table

    def node(self, names: tuple[str, ...], stage: Ints, microbatch: Ints) -> Ints:
        """The node of the first of these kinds that exists, else -1."""
        found = np.full(len(stage), -1, np.int64)
        inside = (stage >= 0) & (stage < self.rows_high)
        inside &= (microbatch >= 0) & (microbatch < self.program.microbatches)
        for name in reversed(names):
            if name in self.tables:
                hit = self.tables[name][stage[inside], microbatch[inside]]
                found[inside] = np.where(hit >= 0, hit, found[inside])
        return found

    def add(self, source: Ints, target: Ints, sender: Ints | None = None) -> None:
        self.edges.append((source, target, np.full_like(source, -1) if sender is None else sender))

    def chains(self) -> None:
        last = np.zeros(len(self.rank), bool)
        last[self.start[self.start < len(last)]] = True
        later = np.flatnonzero(~last)
        self.add(later - 1, later)

    def needs(self) -> None:
        for name, code in self.codes.items():
            if is_kind(name):
                nodes = np.flatnonzero(self.kind == code)
                for need in kind(name).needs:
                    self._need(need, nodes, kind(name).scope == "stage")

    def _need(self, need: Need, nodes: Ints, staged: bool) -> None:
        stage = self.stage[nodes] + _SHIFT[need.where]
        high = self.program.stages if staged else self.rows_high
        nodes, stage = (x[(stage >= 0) & (stage < high)] for x in (nodes, stage))
        source = self.node(need.kinds, stage, self.microbatch[nodes])
        self.missing.append(nodes[source < 0])
        nodes, source = nodes[source >= 0], source[source >= 0]
        crosses = self.rank[source] != self.rank[nodes]
        send = "SEND_F" if need.where == "previous" else "SEND_B"
        if send in self.tables and need.where != "same":
            self._through_messages(send, source, nodes, crosses)
        else:
            self.add(source, nodes, np.where(crosses, self.rank[source], -1))

    def _through_messages(self, send: str, source: Ints, nodes: Ints, crosses: Ints) -> None:
        """In a lowered program a pass precedes its SEND, and a RECV the pass that uses it."""
        self.add(source[~crosses], nodes[~crosses])
        source, nodes = source[crosses], nodes[crosses]
        for name, owner in ((send, source), (send.replace("SEND", "RECV"), nodes)):
            message = self.node((name,), self.stage[owner], self.microbatch[owner])
            self.missing.append(nodes[message < 0])
            have = message >= 0
            first, second = (owner, message) if name == send else (message, owner)
            self.add(first[have], second[have])

    def messages(self) -> None:
        """What is sent k-th on a channel arrives for the user of what is received k-th."""
        for sent, got, step in message_channels(self):
            both = min(len(sent), len(got))
            users = ("F",) if step > 0 else BACKWARD
            user = self.node(users, self.stage[got[:both]], self.microbatch[got[:both]])
            have = user >= 0
            self.add(sent[:both][have], user[have], self.rank[sent[:both][have]])

    def barriers(self) -> tuple[Ints, Ints]:
        """Add the barrier nodes and their edges; returns each node's barrier and microbatch."""
        program, count = self.program, self.program.microbatches
        first = len(self.rank)
        base = {b.name: first + at * count for at, b in enumerate(program.barriers)}
        launches: dict[str, dict[int, list[tuple[Ints, Ints]]]] = {}
        for barrier in program.barriers:
            self._made_before_entered(barrier)
            for rank, passes in self._launching(barrier):
                nodes = base[barrier.name] + self.microbatch[passes]
                self.add(passes, nodes)
                lane = launches.setdefault(barrier.communicator or barrier.name, {})
                lane.setdefault(rank, []).append((passes, nodes))
                if barrier.blocking:
                    self._block(passes, nodes)
            if barrier.source == "barrier" and barrier.name not in self.codes:
                self._follow(base, barrier, launches)
            for where, name in barrier.before:
                targets = self._at(where, name)
                self.add(base[barrier.name] + self.microbatch[targets], targets)
        for lane in launches.values():
            self._serialize(lane)
        index = np.arange(len(program.barriers) * count)
        return index // max(1, count), index % max(1, count)

    def _made_before_entered(self, barrier: Barrier) -> None:
        """In a lowered program, a rank enters a barrier behind the pass that makes its part."""
        if barrier.name not in self.codes:
            return
        makes = "C" if barrier.source == "barrier" else barrier.after
        makers = self._at("every" if barrier.source == "barrier" else barrier.source, makes)
        enters = self.node((barrier.name,), self.rank[makers], self.microbatch[makers])
        self.add(makers[enters >= 0], enters[enters >= 0])

    def _launching(self, barrier: Barrier) -> Iterator[tuple[int, Ints]]:
        """Per rank, the passes that start a barrier: its own where lowered, else those before."""
        if barrier.name in self.codes:
            passes = self._at("every", barrier.name)
        elif barrier.source == "barrier":
            return
        else:
            passes = self._at(barrier.source, barrier.after)
        for rank in sorted(set(self.rank[passes].tolist())):
            yield rank, passes[self.rank[passes] == rank]

    def _follow(
        self,
        base: dict[str, int],
        barrier: Barrier,
        launches: dict[str, dict[int, list[tuple[Ints, Ints]]]],
    ) -> None:
        """A barrier after a barrier starts by itself, in the same order."""
        if barrier.after not in base:
            raise ValueError(f"barrier {barrier.name} follows {barrier.after}, which is not there")
        every = np.arange(self.program.microbatches)
        self.add(base[barrier.after] + every, base[barrier.name] + every)
        lane = launches.setdefault(barrier.communicator or barrier.name, {})
        lane.setdefault(-1, []).append((every, base[barrier.name] + every))

    def _at(self, where: str, name: str) -> Ints:
        """The passes of a kind, on every rank or only at the first or last stage."""
        chosen = (self.kind == self.codes.get(name, -1)) & (self.microbatch >= 0)
        chosen &= self.microbatch < self.program.microbatches
        if where != "every":
            chosen &= self.stage == (0 if where == "first" else self.program.stages - 1)
        return np.flatnonzero(chosen)

    def _block(self, passes: Ints, nodes: Ints) -> None:
        following = passes + 1
        inside = following < len(self.rank)
        inside[inside] = self.rank[following[inside]] == self.rank[passes[inside]]
        self.add(nodes[inside], following[inside])

    def _serialize(self, lane: dict[int, list[tuple[Ints, Ints]]]) -> None:
        """A communicator runs its collectives in each rank's own order of starting them."""
        pairs = []
        for parts in lane.values():
            passes, nodes = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            order = nodes[np.argsort(passes, kind="stable")]
            pairs.append(np.stack([order[:-1], order[1:]], axis=1))
        unique = np.unique(np.concatenate(pairs), axis=0)
        self.add(unique[:, 0], unique[:, 1])


def make_graph(program: Program) -> Graph:
    """The graph of a program, however wrong the program is.

    Passes of unknown kinds or out of range have their place in the chain and no other edge.
    """
    build = _Builder(program)
    build.chains()
    build.needs()
    build.messages()
    barrier, microbatch = build.barriers() if program.barriers else (_NONE, _NONE)
    source, target, sender = (
        np.concatenate([edge[i] for edge in build.edges] or [_NONE]) for i in range(3)
    )
    return Graph(
        program=program,
        kinds=tuple(build.codes),
        rank=build.rank,
        stage=build.stage,
        kind=build.kind,
        microbatch=build.microbatch,
        barrier=barrier,
        barrier_microbatch=microbatch,
        source=source,
        target=target,
        sender=sender,
        missing=np.unique(np.concatenate(build.missing or [_NONE])),
        start=build.start,
    )
