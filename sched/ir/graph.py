"""Build the dependency graph of a program: which pass waits for which.

`check` and `simulate` read the same graph, so the simulator times exactly what the checker proves.
The nodes are the passes, rank by rank, then the barriers, microbatch by microbatch. The edges are

- the chain of each rank: a pass waits for the pass before it;
- the needs of each kind (`kinds`): an input from another rank is a message (`p2p_ns`);
- the barriers: they wait for their passes on all ranks, and for the collective that any of those
  ranks started before them on the same communicator; other passes wait for them;
- the program's edges: a pass waits for the result of another one, from whichever rank;
- in a lowered program, what crosses ranks goes through its SEND and RECV: the k-th receive from a
  peer gets that peer's k-th message. The transfer needs both, so the pass that uses the message
  comes after both; that it also waits for the messages before it on its channel adds nothing,
  since their SEND and RECV come before its own.

A program can run to its end if and only if its graph has no cycle. Programs may have a hundred
thousand passes, so everything is integer arrays.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .channels import Ints, Nodes, message_channels
from .kinds import Need, is_kind, kind
from .program import NO_MICROBATCH, Barrier, Pass, Program

_SHIFT = {"same": 0, "previous": -1, "next": 1}
_NONE = np.empty(0, np.int64)
_Started = dict[str, dict[int, list[tuple[Ints, Ints]]]]


@dataclass(frozen=True, slots=True)
class Graph(Nodes):
    """Nodes and edges. Nodes [0, passes) are passes, the others are barriers.

    `barrier`, `barrier_microbatch`: per barrier node; `barrier` is an index into the program's
    barriers.
    `source`, `target`: per edge. `sender`: per edge, the sending rank if it is a transfer, else -1;
    in a lowered program the edges from a message's SEND and from its RECV both are.
    `missing`: passes with a need that no pass meets. `start`: the node of each rank's first pass.
    `received`: (RECVs, passes that use what they receive) of a lowered program.
    """

    barrier: Ints
    barrier_microbatch: Ints
    source: Ints
    target: Ints
    sender: Ints
    missing: Ints
    start: Ints
    received: tuple[Ints, Ints]

    @property
    def passes(self) -> int:
        """Return the number of nodes that are passes."""
        return len(self.rank)

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.rank) + len(self.barrier)

    def name(self, node: int) -> str:
        """Return a node as text: a pass such as `2F0`, or a barrier and its microbatch, `CS3`."""
        if node < self.passes:
            rank = int(self.rank[node])
            return str(self.program.ranks[rank][node - int(self.start[rank])])
        at = node - self.passes
        return f"{self.program.barriers[self.barrier[at]].name}{self.barrier_microbatch[at]}"


class _Builder:
    """Collect the edges of a graph under construction."""

    def __init__(self, program: Program) -> None:
        rows = [pass_ for row in program.ranks for pass_ in row]
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
        self.table_rows = max(program.stages, len(program.ranks))
        self.edges: list[tuple[Ints, Ints, Ints]] = []
        self.missing: list[Ints] = []
        # The receives of a lowered program, and the passes that use what they receive.
        self.uses: list[tuple[Ints, Ints]] = []
        self.lowered = any(name.startswith(("SEND_", "RECV_")) for name in codes)
        self.tables = {name: self._table(code) for name, code in codes.items()}

    def _table(self, code: int) -> Ints:
        """Return the nodes of a kind by (stage, microbatch), -1 where there is none."""
        table = np.full((self.table_rows, self.program.microbatches), -1, np.int64)
        nodes = np.flatnonzero(self.kind == code)
        keep = (self.stage[nodes] < table.shape[0]) & (self.microbatch[nodes] < table.shape[1])
        nodes = nodes[keep & (self.microbatch[nodes] != NO_MICROBATCH)]
        table[self.stage[nodes], self.microbatch[nodes]] = nodes
        return table

    def find_nodes(self, names: tuple[str, ...], stage: Ints, microbatch: Ints) -> Ints:
        """Return, for each place, the node of the first of these kinds that is there, else -1."""
        nodes = np.full(len(stage), -1, np.int64)
        inside = (stage >= 0) & (stage < self.table_rows)
        inside &= (microbatch >= 0) & (microbatch < self.program.microbatches)
        for name in reversed(names):
            if name in self.tables:
                hit = self.tables[name][stage[inside], microbatch[inside]]
                nodes[inside] = np.where(hit >= 0, hit, nodes[inside])
        return nodes

    def add_edges(self, source: Ints, target: Ints, sender: Ints | None = None) -> None:
        """Add edges; `sender`: the sending ranks of those that cross ranks, -1 for the others."""
        self.edges.append((source, target, np.full_like(source, -1) if sender is None else sender))

    def add_chains(self) -> None:
        """Add an edge from every pass to the next one of its rank."""
        first = np.zeros(len(self.rank), bool)
        first[self.start[self.start < len(first)]] = True
        later = np.flatnonzero(~first)
        self.add_edges(later - 1, later)

    def add_needs(self) -> None:
        """Add the edges that the needs of the kinds ask for."""
        for name, code in self.codes.items():
            if is_kind(name):
                nodes = np.flatnonzero(self.kind == code)
                for need in kind(name).needs:
                    self._add_need(need, nodes, kind(name).scope == "stage")

    def _add_need(self, need: Need, nodes: Ints, staged: bool) -> None:
        stage = self.stage[nodes] + _SHIFT[need.where]
        # At the model's ends there is no previous or next stage, and the need is void.
        high = self.program.stages if staged else self.table_rows
        nodes, stage = (x[(stage >= 0) & (stage < high)] for x in (nodes, stage))
        source = self.find_nodes(need.kinds, stage, self.microbatch[nodes])
        if need.required:
            self.missing.append(nodes[source < 0])
        nodes, source = nodes[source >= 0], source[source >= 0]
        crosses = self.rank[source] != self.rank[nodes]
        if self.lowered and need.where != "same":
            letter = "F" if need.where == "previous" else "B"
            self.add_edges(source[~crosses], nodes[~crosses])
            source, nodes = source[crosses], nodes[crosses]
            send = self.find_nodes((f"SEND_{letter}",), self.stage[source], self.microbatch[source])
            receive = self.find_nodes(
                (f"RECV_{letter}",), self.stage[nodes], self.microbatch[nodes]
            )
            self._add_messages_between(source, send, receive, nodes)
        else:
            self.add_edges(source, nodes, np.where(crosses, self.rank[source], -1))

    def _add_messages_between(self, source: Ints, send: Ints, receive: Ints, user: Ints) -> None:
        """Add a lowered program's edges from passes to their SENDs; note who uses the RECVs.

        The edges to the users are `messages`' work, since channels are matched by order.
        """
        self.missing.append(user[(send < 0) | (receive < 0)])
        self.add_edges(source[send >= 0], send[send >= 0])
        self.uses.append((receive[receive >= 0], user[receive >= 0]))

    def add_program_edges(self) -> None:
        """Add the program's own edges."""
        pairs = [(self._find(edge.source), self._find(edge.target)) for edge in self.program.edges]
        joined = np.array([pair for pair in pairs if min(pair) >= 0], np.int64).reshape(-1, 2)
        source, target = joined[:, 0], joined[:, 1]
        # A source that is not there; `references` reports edges whose target is not.
        lost = [target for source, target in pairs if source < 0 <= target]
        self.missing.append(np.array(lost, np.int64))
        crosses = self.rank[source] != self.rank[target]
        if not self.lowered:
            self.add_edges(source, target, np.where(crosses, self.rank[source], -1))
            return
        self.add_edges(source[~crosses], target[~crosses])
        source, target = source[crosses], target[crosses]
        send, receive = self._edge_messages(source, target)
        self._add_messages_between(source, send, receive, target)

    def _find(self, pass_: Pass) -> int:
        """Return the node of a pass, -1 if it is not in the program."""
        table = self.tables.get(pass_.kind)
        inside = pass_.stage < self.table_rows and 0 <= pass_.microbatch < self.program.microbatches
        return int(table[pass_.stage, pass_.microbatch]) if table is not None and inside else -1

    def _edge_messages(self, source: Ints, target: Ints) -> tuple[Ints, Ints]:
        """Return the SENDs of these passes' results and their RECVs at the targets, -1 if none."""
        carries = {code: name for name, code in self.codes.items() if name[4:7] == "_X_"}
        nodes = np.flatnonzero(np.isin(self.kind, list(carries)))
        # A result may go to several ranks, so the receiving rank is part of the key.
        columns = (self.kind, self.stage, self.microbatch, self.rank)
        keys = zip(*(column[nodes].tolist() for column in columns), strict=True)
        node_by_key = dict(zip(keys, nodes.tolist(), strict=True))

        def ends(end: str, at: Ints) -> Ints:
            names = (f"{end}_X_{self.kinds[code]}" for code in self.kind[source].tolist())
            codes = (self.codes.get(name, -1) for name in names)
            columns = (self.stage[source], self.microbatch[source], self.rank[at])
            keys = zip(codes, *(column.tolist() for column in columns), strict=True)
            return np.array([node_by_key.get(key, -1) for key in keys], np.int64)

        return ends("SEND", source), ends("RECV", target)

    def find_received(self) -> tuple[Ints, Ints]:
        """Return the receives of a lowered program, and the passes that use them."""
        receive, user = (np.concatenate([p[i] for p in self.uses] or [_NONE]) for i in (0, 1))
        return receive, user

    def add_messages(self) -> None:
        """Add edges from the k-th SEND of a channel, and the k-th RECV, to that RECV's users."""
        partner = np.full(len(self.rank), -1, np.int64)
        passes = Nodes(self.program, self.kinds, self.rank, self.stage, self.kind, self.microbatch)
        for channel in message_channels(passes):
            both = min(len(channel.sends), len(channel.receives))
            partner[channel.receives[:both]] = channel.sends[:both]
        receive, user = self.find_received()
        send = partner[receive]
        sender = np.where(send >= 0, self.rank[send], -1)
        self.add_edges(receive, user, sender)
        self.add_edges(send[send >= 0], user[send >= 0], sender[send >= 0])

    def add_barriers(self) -> tuple[Ints, Ints]:
        """Add the barrier nodes and their edges; return each node's barrier and microbatch."""
        program, count = self.program, self.program.microbatches
        first = len(self.rank)
        base = {b.name: first + at * count for at, b in enumerate(program.barriers)}
        # By communicator and rank: the passes that start collectives, and the barriers' nodes.
        started: _Started = {}
        for barrier in program.barriers:
            self._made_before_entered(barrier)
            for rank, passes in self._starting(barrier):
                nodes = base[barrier.name] + self.microbatch[passes]
                self.add_edges(passes, nodes)
                by_rank = started.setdefault(barrier.communicator or barrier.name, {})
                by_rank.setdefault(rank, []).append((passes, nodes))
                if barrier.blocking:
                    self._block(passes, nodes)
            if barrier.source == "barrier" and barrier.name not in self.codes:
                self._follow(base, barrier, started)
            for where, name in barrier.before:
                targets = self._at(where, name)
                self.add_edges(base[barrier.name] + self.microbatch[targets], targets)
        for by_rank in started.values():
            self._serialize(by_rank)
        index = np.arange(len(program.barriers) * count)
        return index // max(1, count), index % max(1, count)

    def _made_before_entered(self, barrier: Barrier) -> None:
        """Make a rank of a lowered program enter a barrier after the pass that makes its part."""
        if barrier.name not in self.codes:
            return
        makes = "C" if barrier.source == "barrier" else barrier.after
        makers = self._at("every" if barrier.source == "barrier" else barrier.source, makes)
        enters = self.find_nodes((barrier.name,), self.rank[makers], self.microbatch[makers])
        self.add_edges(makers[enters >= 0], enters[enters >= 0])

    def _starting(self, barrier: Barrier) -> Iterator[tuple[int, Ints]]:
        """Yield (rank, passes) that start a barrier: its own if lowered, else those before it."""
        if barrier.name in self.codes:
            passes = self._at("every", barrier.name)
        elif barrier.source == "barrier":
            return
        else:
            passes = self._at(barrier.source, barrier.after)
        for rank in sorted(set(self.rank[passes].tolist())):
            yield rank, passes[self.rank[passes] == rank]

    def _follow(self, base: dict[str, int], barrier: Barrier, started: _Started) -> None:
        """Add the edges of a barrier that starts when another one ends, in the same order."""
        if barrier.after not in base:
            raise ValueError(
                f"barrier {barrier.name} follows {barrier.after}; add that barrier too"
            )
        microbatches = np.arange(self.program.microbatches)
        self.add_edges(base[barrier.after] + microbatches, base[barrier.name] + microbatches)
        by_rank = started.setdefault(barrier.communicator or barrier.name, {})
        # Rank -1: no rank starts it.
        by_rank.setdefault(-1, []).append((microbatches, base[barrier.name] + microbatches))

    def _at(self, where: str, name: str) -> Ints:
        """Return the passes of a kind, on every rank or only at the first or last stage."""
        chosen = (self.kind == self.codes.get(name, -1)) & (self.microbatch >= 0)
        chosen &= self.microbatch < self.program.microbatches
        if where != "every":
            chosen &= self.stage == (0 if where == "first" else self.program.stages - 1)
        return np.flatnonzero(chosen)

    def _block(self, passes: Ints, nodes: Ints) -> None:
        """Make the pass after each of these wait for the barrier."""
        following = passes + 1
        inside = following < len(self.rank)
        inside[inside] = self.rank[following[inside]] == self.rank[passes[inside]]
        self.add_edges(nodes[inside], following[inside])

    def _serialize(self, by_rank: dict[int, list[tuple[Ints, Ints]]]) -> None:
        """Make a communicator run its collectives in the order in which each rank starts them."""
        pairs = []
        for parts in by_rank.values():
            passes, nodes = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            order = nodes[np.argsort(passes, kind="stable")]
            pairs.append(np.stack([order[:-1], order[1:]], axis=1))
        unique = np.unique(np.concatenate(pairs), axis=0)
        self.add_edges(unique[:, 0], unique[:, 1])


def make_graph(program: Program) -> Graph:
    """Return the graph of a program, which may be wrong: the checker reads it too.

    Passes of unknown kinds or out of range have their place in the chain and no other edge.
    """
    build = _Builder(program)
    build.add_chains()
    build.add_needs()
    build.add_program_edges()
    build.add_messages()
    barrier, microbatch = build.add_barriers() if program.barriers else (_NONE, _NONE)
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
        received=build.find_received(),
    )
