"""Replay of a filled schedule with other durations than it was planned for.

A runtime fixes the order, not the times. Each GPU has a compute stream and a communication stream;
host and encoder kernels are queued on them in the order of their planned starts, and each starts
when its predecessor on the stream and its inputs have ended. A kernel that takes longer than its
bubble therefore delays the language model, and through the pipeline all others; a shorter one may
let everything start earlier. Durations are arrays with one entry per kernel, so noise, drift and
measured traces are treated alike.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterpoise.sched.bubble_filling.encoder_plans import Host
from counterpoise.sched.bubble_filling.gaps import COMPUTING, FREE, Gaps, Ints, fill_holes
from counterpoise.sched.bubble_filling.instance import (
    EncoderPipeline,
    FilledSchedule,
    FillProblem,
    Work,
)
from counterpoise.sched.bubble_filling.kernels import walk
from counterpoise.sched.ir.graph import make_graph
from counterpoise.sched.ir.kinds import BACKWARD
from counterpoise.sched.simulation.simulator import transfer_delays
from counterpoise.sched.simulation.timeline import Slot

# Classes of kernels for noise: whose they are, and the resource they use.
HOST_COMPUTE, HOST_LINKS, NETWORK, GUEST_COMPUTE, GUEST_LINKS = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """All kernels of a step as a graph; node order is the order of planned starts within parts.

    `what`, `rank`, `ns`, `planned`: per node. `source`, `target`, `lag`: per edge. `host`: the
    number of the language model's nodes, which come first.
    """

    what: Ints
    rank: Ints
    ns: Ints
    planned: Ints
    source: Ints
    target: Ints
    lag: Ints
    host: int

    def run(self, ns: Ints | None = None) -> tuple[Ints, Ints]:
        """Return start and end of every kernel with these durations (default: the planned ones).

        The step begins at 0.
        """
        order = np.argsort(self.planned, kind="stable")
        by_target = np.argsort(self.target, kind="stable")
        first = np.searchsorted(self.target[by_target], np.arange(len(self.ns) + 1))
        taken = self.ns if ns is None else ns
        start = walk(order, first, self.source[by_target], self.lag[by_target], taken)
        return start, start + taken

    def step_ns(self, ns: Ints | None = None) -> int:
        """Return the step's length."""
        return int(self.run(ns)[1].max())


@dataclass(frozen=True, slots=True, eq=False)
class _Host:
    """The language model's nodes: per rank their range, per pass its first and last node."""

    base: tuple[int, ...]
    first: Ints
    last: Ints
    pass_start: Ints


def host_kernels_graph(host: Host) -> tuple[Kernels, _Host]:
    """Return the graph of the language model alone, and an index from passes to its nodes."""
    graph = make_graph(host.program)
    parts: list[tuple[Ints, Ints, Ints]] = []
    base, first, last = [], np.zeros(graph.passes, np.int64), np.zeros(graph.passes, np.int64)
    count = 0
    for rank, row in enumerate(host.timeline.ranks):
        planned, ns, what, owner = _rank_kernels(host, rank)
        places = int(graph.start[rank]) + np.arange(len(row))
        first[places] = count + np.searchsorted(owner, np.arange(len(row)), side="left")
        last[places] = count + np.searchsorted(owner, np.arange(len(row)), side="right") - 1
        parts.append((planned, ns, what))
        base.append(count)
        count += len(owner)
    planned, ns, what = (np.concatenate([part[i] for part in parts]) for i in range(3))
    rank_of = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts]).astype(np.int64)
    # Kernels of a rank run one after another; passes that wait for another rank's add an edge.
    chain = np.flatnonzero(np.diff(rank_of) == 0)
    crosses = np.flatnonzero((graph.sender >= 0) & (graph.target < graph.passes))
    lag = transfer_delays(graph, host.costs)[crosses]
    kernels = Kernels(
        what.astype(np.int64),
        rank_of,
        ns,
        planned,
        np.concatenate((chain, last[graph.source[crosses]])),
        np.concatenate((chain + 1, first[graph.target[crosses]])),
        np.concatenate((np.zeros(len(chain), np.int64), lag)),
        count,
    )
    return kernels, _Host((*base, count), first, last, graph.start)


def _rank_kernels(host: Host, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return start, duration, class and owning pass of a rank's kernels, pass by pass.

    A pass without stretches of its own (a data-parallel collective) is one kernel on the network.
    """
    row, one = host.timeline.ranks[rank], host.gaps.ranks[rank]
    own = one.kind != FREE
    owners = np.searchsorted([slot.end_ns for slot in row], one.start[own], side="right")
    bare = np.flatnonzero(~np.isin(np.arange(len(row)), owners))
    start = np.concatenate((one.start[own], [row[i].start_ns for i in bare])).astype(np.int64)
    end = np.concatenate((one.end[own], [row[i].end_ns for i in bare])).astype(np.int64)
    code = np.where(one.kind[own] == COMPUTING, HOST_COMPUTE, HOST_LINKS)
    what = np.concatenate((code, np.full(len(bare), NETWORK)))
    owner = np.concatenate((owners, bare))
    order = np.lexsort((start, owner))
    return start[order], (end - start)[order], what[order], owner[order]


def _exchange_nodes(host: Host, index: _Host) -> tuple[Ints, Ints]:
    """Return the nodes that take each encoder output and those that give its gradient."""
    rank = host.gaps.first_rank
    offset = int(index.pass_start[rank])
    enter, leave = {}, {}
    for at, slot in enumerate(host.timeline.ranks[rank]):
        if slot.what.stage == 0 and slot.what.kind == "F":
            enter[slot.what.microbatch] = (slot.start_ns, int(index.first[offset + at]))
        elif slot.what.stage == 0 and slot.what.kind in BACKWARD:
            leave[slot.what.microbatch] = int(index.last[offset + at])
    order = sorted(enter, key=enter.__getitem__)
    return (
        np.array([enter[microbatch][1] for microbatch in order], np.int64),
        np.array([leave.get(microbatch, enter[microbatch][1]) for microbatch in order], np.int64),
    )


def taken(
    problem: FillProblem, work: Work, ranks: Sequence[int], order: Sequence[int], starts: Ints
) -> Ints:
    """Return what kernels take that begin at `starts` (microbatches in `order`, stages, kernels).

    Those that begin beside a kernel of the language model take longer where the problem says so.
    """
    rows = order if work.ns.shape[1] > 1 else [0] * len(order)
    lanes = list(ranks) if work.ns.shape[0] > 1 else [0] * len(ranks)
    ns = work.ns[lanes][:, np.array(rows, np.int64)].transpose(1, 0, 2).copy()
    extra = -(-ns * np.array(problem.slower, np.int64)[work.resource] // 1000)
    for stage, rank in enumerate(ranks):
        one = problem.gaps.ranks[rank]
        # Before the step's start a kernel is in the extension of the first stretch.
        at = np.maximum(np.searchsorted(one.start, starts[:, stage], side="right") - 1, 0)
        ns[:, stage] += np.where(one.kind[at] == FREE, 0, extra[:, stage])
    return ns


def filled_kernels(host: Host, filled: FilledSchedule) -> Kernels:
    """Return the graph of the language model and the encoders together."""
    alone, index = host_kernels_graph(host)
    build = _Joined(host, filled, alone, index)
    for pipeline in filled.pipelines:
        build.add_pipeline(pipeline)
    build.streams()
    return build.result()


class _Joined:
    """A collector of the encoders' nodes and edges."""

    def __init__(self, host: Host, filled: FilledSchedule, alone: Kernels, index: _Host) -> None:
        self.problem, self.alone, self.count = filled.problem, alone, alone.host
        self.nodes: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
        self.edges: list[tuple[Ints, Ints, Ints]] = [(alone.source, alone.target, alone.lag)]
        self.enter, self.leave = _exchange_nodes(host, index)

    def _edge(self, source: Ints, target: Ints, lag: int) -> None:
        self.edges.append((source, target, np.full(len(source), lag, np.int64)))

    def add_pipeline(self, p: EncoderPipeline) -> None:
        """Add one pipeline: its kernels, their chains, and its edges to the language model."""
        problem = self.problem
        place = dict(zip(p.microbatches, p.position, strict=True))
        forward = self._nodes(p, p.forward, problem.forward, p.microbatches)
        backward = self._nodes(p, p.backward, problem.backward, p.backward_order)
        self._chain(forward, problem.hop_ns, range(len(p.ranks)))
        self._chain(backward, problem.hop_ns, range(len(p.ranks))[::-1])
        if forward.size:
            into = self.enter[[place[m] for m in p.microbatches]]
            self._edge(forward[:, -1, -1], into, problem.hop_ns)
        if backward.size:
            out = self.leave[[place[m] for m in p.backward_order]]
            self._edge(out, backward[:, -1, 0], problem.hop_ns)

    def _nodes(self, p: EncoderPipeline, starts: Ints, work: Work, order: tuple[int, ...]) -> Ints:
        number = self.count + np.arange(starts.size).reshape(starts.shape)
        self.count += starts.size
        what = np.where(work.resource == 0, GUEST_COMPUTE, GUEST_LINKS)
        ranks = np.array(p.ranks, np.int64)[None, :, None]
        shape = starts.shape
        self.nodes.append(
            (
                np.broadcast_to(what[None, None, :], shape).ravel(),
                np.broadcast_to(ranks, shape).ravel(),
                taken(self.problem, work, p.ranks, order, starts).ravel(),
                starts.ravel(),
                np.full(starts.size, p.copy, np.int64),
            )
        )
        return number

    def _chain(self, nodes: Ints, hop: int, stages: range) -> None:
        if not nodes.size:
            return
        self._edge(nodes[:, :, :-1].ravel(), nodes[:, :, 1:].ravel(), 0)
        for before, after in itertools.pairwise(stages):
            self._edge(nodes[:, before, -1], nodes[:, after, 0], hop)

    def streams(self) -> None:
        """Order kernels on each GPU's two streams, and the encoders' among themselves."""
        what, rank, _, planned, copy = (
            np.concatenate([n[i] for n in self.nodes]) for i in range(5)
        )
        guest = self.alone.host + np.arange(len(what))
        every = np.concatenate((self.alone.planned, planned))
        host = self.alone.what
        for at in range(int(self.alone.rank.max()) + 1):
            own = self.alone.rank == at
            for lane in range(int(copy.max(initial=0)) + 1):
                mine = guest[(rank == at) & (copy == lane)]
                if not len(mine):
                    continue
                mine = mine[np.argsort(every[mine], kind="stable")]
                self._edge(mine[:-1], mine[1:], 0)
                for ours, theirs in ((HOST_COMPUTE, GUEST_COMPUTE), (HOST_LINKS, GUEST_LINKS)):
                    hosts = np.flatnonzero(own & (host == ours))
                    guests = mine[what[mine - self.alone.host] == theirs]
                    self._alternate(hosts[np.argsort(every[hosts], kind="stable")], guests, every)

    def _alternate(self, hosts: Ints, guests: Ints, planned: Ints) -> None:
        """Make each kernel wait for the last of the other kind that was planned before it."""
        for first, then in ((hosts, guests), (guests, hosts)):
            at = np.searchsorted(planned[first], planned[then], side="left") - 1
            have = at >= 0
            self._edge(first[at[have]], then[have], 0)

    def result(self) -> Kernels:
        alone = self.alone
        what, rank, ns, planned, _ = (np.concatenate([n[i] for n in self.nodes]) for i in range(5))
        source, target, lag = (np.concatenate([e[i] for e in self.edges]) for i in range(3))
        return Kernels(
            np.concatenate((alone.what, what)),
            np.concatenate((alone.rank, rank)),
            np.concatenate((alone.ns, ns)),
            np.concatenate((alone.planned, planned)),
            source,
            target,
            lag,
            alone.host,
        )


def measured_host(host: Host, ns: Ints) -> Host:
    """Return the language model's step with these kernel times."""
    alone, index = host_kernels_graph(host)
    start, end = alone.run(ns)
    step = int(end.max())
    ranks, rows = [], []
    for rank, old in enumerate(host.gaps.ranks):
        nodes = np.arange(index.base[rank], index.base[rank + 1])
        inner = nodes[alone.what[nodes] != NETWORK]
        busy = old.kind[old.kind != FREE]
        ranks.append(fill_holes(start[inner], end[inner], busy, step))
        at = int(index.pass_start[rank]) + np.arange(len(host.timeline.ranks[rank]))
        opens, closes = start[index.first[at]].tolist(), end[index.last[at]].tolist()
        slots = zip(host.timeline.ranks[rank], opens, closes, strict=True)
        rows.append(tuple(Slot(slot.what, a, b) for slot, a, b in slots))
    enter, leave = _exchange_nodes(host, index)
    gaps = Gaps(tuple(ranks), start[enter], end[leave], step, host.gaps.first_rank)
    timeline = replace(host.timeline, ranks=tuple(rows), makespan_ns=step)
    return replace(host, gaps=gaps, timeline=timeline)
