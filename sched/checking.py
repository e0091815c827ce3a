"""Check that a program is a whole training step and runs to its end.

`check` raises if any of these proofs fails, and shows the grid with the culprits marked:

- references: kinds are registered; stages, microbatches and ranks exist; passes are on their ranks;
- completeness: each stage and microbatch goes forward once and backward once (B, or I and W),
  unless the program only goes forward; each vocabulary pass is on every rank once;
- channels: both ends of each one-way channel have the same messages in the same order;
- collectives: all ranks enter each communicator's collectives in one order;
- order: on its rank no pass comes before one that it needs, such as W before I;
- inputs: every input of a pass is computed somewhere and reaches it;
- cycle: in the graph that the simulator times, no passes wait for each other in a cycle;
- memory: no rank holds more than the limit, if one is given.

A program that passes has an execution in which every pass runs once, after what it needs,
whatever the times are, also where a transfer waits for its receive to be posted and for those
before it on its channel: the graph makes its user wait for both ends, and at both ends the earlier
messages come first. The proof assumes that sends and collectives do not block their rank: they run
on streams of their own, with one communicator per barrier class and per ordered pair of ranks.
Blocking barriers do block.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .ir.channels import Ints, crossing_results, entered_collectives, message_channels
from .ir.graph import Graph, make_graph
from .ir.kinds import is_compute, is_kind, is_staged, kind
from .ir.paths import find_cycle, longest_paths
from .ir.program import NO_MICROBATCH, Pass, Program
from .simulation.costs import Costs, Table
from .simulation.simulator import memory_curves


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a program.

    `proof`: the name of the proof that failed. `message`: the sentence for the user. `culprits`:
    (rank, index in the rank's list) of the passes to mark.
    """

    proof: str
    message: str
    culprits: tuple[tuple[int, int], ...] = ()


_NEAR = 5


def marked_grid(program: Program, marks: Collection[tuple[int, int]]) -> str:
    """Return the grid with each marked (rank, index) in brackets.

    Long rows are cut to the neighbourhood of the marks, or to their beginning without any.

    >>> from counterpoise.sched import schedule
    >>> print(marked_grid(schedule("1f1b", ranks=2, microbatches=2), {(0, 2)}))
    0:  0F0  0F1 [0B0] 0B1
    1:  1F0  1B0  1F1  1B1
    """
    columns = [at for _, at in marks] or [0]
    low, high = max(0, min(columns) - _NEAR), max(columns) + _NEAR + 1
    # Marks may be far apart; show the first ones rather than a grid too wide to read.
    if high - low > 6 * _NEAR:
        high = low + 6 * _NEAR
    width = max((len(str(p)) for row in program.ranks for p in row[low:high]), default=0) + 2
    label = len(str(len(program.ranks) - 1))
    lines = []
    for rank, row in enumerate(program.ranks):
        cells = [
            (f"[{pass_}]" if (rank, at) in marks else f" {pass_} ").ljust(width)
            for at, pass_ in enumerate(row[low:high], start=low)
        ]
        before, after = "... " if low else "", " ..." if len(row) > high else ""
        lines.append((f"{rank:>{label}}: {before}" + "".join(cells) + after).rstrip())
    return "\n".join(lines)


# Problems reported per proof and kind of pass: a wrong generator makes thousands alike.
_SHOWN = 20


def culprit(graph: Graph, node: int) -> tuple[int, int]:
    """Return the place of a pass: its rank and its index in the rank's list."""
    rank = int(graph.rank[node])
    return rank, node - int(graph.start[rank])


def references(graph: Graph) -> Iterator[Problem]:
    """Check that all kinds, stages, microbatches and ranks exist, and that passes are on theirs."""
    program = graph.program
    ranks = len(program.ranks)
    for stage, rank in enumerate(program.placement):
        if not 0 <= rank < ranks:
            # The checks below look up ranks by stage, so they cannot run.
            message = f"stage {stage} is placed on rank {rank}; there are {ranks} ranks"
            yield Problem("references", message)
            return
    barriers = {barrier.name for barrier in program.barriers}
    yield from _edges(program)
    carried = set(crossing_results(program))
    for code, name in enumerate(graph.kinds):
        nodes = np.flatnonzero(graph.kind == code)
        if name.startswith(("SEND_X_", "RECV_X_")) and is_kind(name):
            yield from _edge_messages(graph, name, nodes, carried)
            yield from _microbatches(graph, name, nodes)
        elif is_kind(name) or name in barriers:
            yield from _stages(graph, name, nodes)
            yield from _microbatches(graph, name, nodes)
        else:
            yield _reference(graph, int(nodes[0]), f"unknown kind {name!r}")


def _edges(program: Program) -> Iterator[Problem]:
    """Check that the passes that edges join are in the program."""
    if not program.edges:
        return
    places = {p: (r, at) for r, row in enumerate(program.ranks) for at, p in enumerate(row)}
    lost = [(e, pass_) for e in program.edges for pass_ in e if pass_ not in places]
    for edge, pass_ in lost[:_SHOWN]:
        marks = tuple(places[end] for end in edge if end in places)
        message = f"the edge {edge} names {pass_}, which is not in the program"
        yield Problem("references", message, marks)


def _edge_messages(
    graph: Graph, name: str, nodes: Ints, carried: set[tuple[Pass, int]]
) -> Iterator[Problem]:
    """Check that an edge asks for each message of a kind, from and to its ranks."""
    end, kind_name = name.split("_X_")
    senders = {source: graph.program.rank_of(source) for source, _ in carried}
    for node in nodes.tolist():
        source = Pass(int(graph.stage[node]), kind_name, int(graph.microbatch[node]))
        rank = int(graph.rank[node])
        asked = (source, rank) in carried if end == "RECV" else senders.get(source) == rank
        if not asked:
            way = "to" if end == "RECV" else "from"
            yield _reference(graph, node, f"no edge takes the result of {source} {way} rank {rank}")


def _stages(graph: Graph, name: str, nodes: Ints) -> Iterator[Problem]:
    """Check that the stages of a kind's passes exist, and that each pass is on its stage's rank."""
    staged = is_staged(name)
    count, place = _rows(graph, name), "stage" if staged else "rank"
    exists = graph.stage[nodes] < count
    for node in nodes[~exists][:_SHOWN].tolist():
        yield _reference(graph, node, f"there is no {place} {graph.stage[node]}, only {count}")
    nodes = nodes[exists]
    placement = np.array(graph.program.placement)
    home = placement[graph.stage[nodes]] if staged else graph.stage[nodes]
    wrong = np.flatnonzero(graph.rank[nodes] != home)[:_SHOWN]
    for node, rank in zip(nodes[wrong].tolist(), home[wrong].tolist(), strict=True):
        message = f"it is on rank {graph.rank[node]}, but belongs on rank {rank}"
        yield _reference(graph, node, message)


def _microbatches(graph: Graph, name: str, nodes: Ints) -> Iterator[Problem]:
    """Check that a kind's passes have a microbatch of the program, or none if done once a step."""
    microbatch = graph.microbatch[nodes]
    once = is_kind(name) and kind(name).once
    wrong = (microbatch == NO_MICROBATCH) != once
    wrong |= microbatch >= graph.program.microbatches
    for node in nodes[wrong][:_SHOWN].tolist():
        message = f"microbatches go from 0 to {graph.program.microbatches - 1}"
        yield _reference(graph, node, message)


def _reference(graph: Graph, node: int, fault: str) -> Problem:
    return Problem("references", f"{graph.name(node)}: {fault}", (culprit(graph, node),))


def completeness(graph: Graph) -> Iterator[Problem]:
    """Check that every pass that a step needs is there, once.

    Each stage and microbatch goes forward and backward once; what a barrier joins is on all ranks.
    """
    counts = {name: _count(graph, name) for name in graph.kinds}
    for name, count in counts.items():
        for stage, microbatch in np.argwhere(count > 1)[:_SHOWN].tolist():
            yield _repeated(graph, name, stage, microbatch)
    yield from _forward_and_backward(graph, counts)
    yield from _on_all_ranks(graph, counts)


def _forward_and_backward(graph: Graph, counts: dict[str, Ints]) -> Iterator[Problem]:
    program = graph.program
    none = np.zeros((program.stages, program.microbatches), np.int64)
    full = np.ones_like(none)
    yield from _missing("F", counts.get("F", none), full)
    b, i, w = (counts.get(name, none) for name in ("B", "I", "W"))
    # A program without any backward only evaluates, which is sound.
    if not (b.any() or i.any() or w.any()):
        return
    yield from _missing("B (or I and W)", b + np.maximum(i, w), full)
    yield from _missing("I", i, w)
    yield from _missing("W", w, i)
    for stage, microbatch in np.argwhere((b > 0) & (np.maximum(i, w) > 0))[:_SHOWN].tolist():
        message = f"stage {stage} has both B and I or W of microbatch {microbatch}"
        yield Problem("completeness", message)


def _on_all_ranks(graph: Graph, counts: dict[str, Ints]) -> Iterator[Problem]:
    program = graph.program
    none = np.zeros((len(program.ranks), program.microbatches), np.int64)
    needed = np.zeros_like(none)
    needed[list(program.members)] = 1
    joined = {b.after for b in program.barriers if b.source == "every"}
    joined |= {name for b in program.barriers for where, name in b.before if where == "every"}
    joined |= {b.name for b in program.barriers if b.name in counts}
    for name in sorted(joined):
        # Kinds that lowering adds (C) may be absent before it; compute kinds may not.
        if name in counts or is_compute(name):
            yield from _missing(name, counts.get(name, none), needed)


def _rows(graph: Graph, name: str) -> int:
    return graph.program.stages if is_staged(name) else len(graph.program.ranks)


def _count(graph: Graph, name: str) -> Ints:
    """Return the number of passes of a kind by (stage, microbatch), once-a-step ones as 0.

    A result may be received on several ranks: of those RECVs, the most on any one rank.
    """
    microbatches = graph.program.microbatches
    nodes = np.flatnonzero(graph.kind == graph.kinds.index(name))
    flat = graph.stage[nodes] * microbatches + np.maximum(graph.microbatch[nodes], 0)
    size = _rows(graph, name) * microbatches
    if name.startswith("RECV_X_"):
        ranks = len(graph.program.ranks)
        flat = graph.rank[nodes] * size + flat
        by_rank = np.bincount(flat, minlength=ranks * size).reshape(ranks, -1, microbatches)
        return np.asarray(by_rank.max(axis=0))
    return np.bincount(flat, minlength=size).reshape(-1, microbatches)


def _missing(name: str, count: Ints, needed: Ints) -> Iterator[Problem]:
    for stage, microbatch in np.argwhere((count == 0) & (needed > 0))[:_SHOWN].tolist():
        yield Problem("completeness", f"stage {stage} has no {name} of microbatch {microbatch}")


def _repeated(graph: Graph, name: str, stage: int, microbatch: int) -> Problem:
    same = (graph.kind == graph.kinds.index(name)) & (graph.stage == stage)
    nodes = np.flatnonzero(same & (np.maximum(graph.microbatch, 0) == microbatch)).tolist()
    marks = tuple(culprit(graph, node) for node in nodes)
    return Problem("completeness", f"{graph.name(nodes[0])} is there {len(nodes)} times", marks)


def order(graph: Graph) -> Iterator[Problem]:
    """Check that on its own rank no pass comes before one that it needs."""
    inner = (graph.source < graph.passes) & (graph.target < graph.passes)
    source, target = graph.source[inner], graph.target[inner]
    back = (graph.rank[source] == graph.rank[target]) & (source > target)
    for late, early in zip(source[back][:_SHOWN].tolist(), target[back].tolist(), strict=False):
        message = f"{graph.name(early)} comes before {graph.name(late)}, which it needs"
        yield Problem("order", message, (culprit(graph, early), culprit(graph, late)))


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
            message = (
                f"{graph.name(marks[0])} meets {graph.name(marks[1])} on the channel from rank "
                f"{channel.source} to rank {channel.target}"
            )
        else:
            end = "receive" if at < len(sent) else "send"
            message = f"{graph.name(marks[0])} has no matching {end}"
        yield Problem("channels", message, tuple(culprit(graph, node) for node in marks))


def inputs(graph: Graph) -> Iterator[Problem]:
    """Check that every input of a pass is computed in the program and reaches it."""
    for node in graph.missing[:_SHOWN].tolist():
        message = f"{graph.name(node)} needs an input that no pass computes or sends to it"
        yield Problem("inputs", message, (culprit(graph, node),))


def collectives(graph: Graph) -> Iterator[Problem]:
    """Check that all ranks enter each communicator's collectives in one order."""
    for communicator, by_rank in entered_collectives(graph.program).items():
        (first_rank, first), *later = by_rank.items()
        for rank, entries in later:
            for expected, entered in zip(first, entries, strict=False):
                if expected.collective != entered.collective:
                    message = (
                        f"communicator {communicator}: rank {first_rank} enters {expected} "
                        f"where rank {rank} enters {entered}"
                    )
                    marks = (first_rank, expected.position), (rank, entered.position)
                    yield Problem("collectives", message, marks)
                    break


def cycle(graph: Graph) -> Iterator[Problem]:
    """Check that no passes wait for each other in a cycle."""
    length = np.zeros(len(graph.source), np.int64)
    _, stuck = longest_paths(graph.source, graph.target, length, graph.nodes)
    if not stuck:
        return
    nodes = find_cycle(graph.source, graph.target, stuck)
    text = " -> ".join(graph.name(node) for node in [*nodes, nodes[0]])
    marks = tuple(culprit(graph, node) for node in nodes if node < graph.passes)
    yield Problem("cycle", f"deadlock: each of these waits for the one before it: {text}", marks)


# In this order: a later proof assumes that the earlier ones found nothing.
PROOFS: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    references,
    completeness,
    channels,
    collectives,
    order,
    inputs,
    cycle,
)


def check(
    program: Program, *, limit: int | None = None, buffer_bytes: Mapping[str, Table] | None = None
) -> None:
    """Raise ValueError, with the grid, unless the program is sound.

    `limit`: the most that any rank may hold at once. `buffer_bytes`: the sizes of buffers in the
    same unit; by default the limit counts live activations.

    >>> from counterpoise.sched import schedule
    >>> check(schedule("1f1b", ranks=2, microbatches=2), limit=2)
    """
    if failures := problems(program, limit=limit, buffer_bytes=buffer_bytes):
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        grid = marked_grid(program, failures[0].culprits)
        raise ValueError(f"{failures[0].message}{more}\n{grid}")


def problems(
    program: Program, *, limit: int | None = None, buffer_bytes: Mapping[str, Table] | None = None
) -> tuple[Problem, ...]:
    """Return the problems that the first failing proof finds, () if the program is sound.

    Takes the arguments of `check`.
    """
    if program.microbatches < 1 or not program.ranks or not program.placement:
        return (Problem("empty", "the program has no microbatches, ranks or stages"),)
    graph = make_graph(program)
    for proof in PROOFS:
        if failures := tuple(proof(graph)):
            return failures
    if limit is None:
        return ()
    return tuple(_memory(graph, limit, buffer_bytes or {"activation": 1}))


def _memory(graph: Graph, limit: int, buffer_bytes: Mapping[str, Table]) -> Iterator[Problem]:
    """Check the memory, which depends on each rank's order alone: pass i runs from 2i to 2i + 1."""
    position = np.arange(graph.passes) - graph.start[graph.rank]
    costs = Costs({}, buffer_bytes=buffer_bytes)
    for rank, curve in enumerate(memory_curves(graph, costs, 2 * position, 2 * position + 1)):
        over = [(at, held) for at, held in curve if held > limit]
        if over:
            most = max(held for _, held in over)
            message = f"rank {rank} holds {most}, more than the limit {limit}"
            yield Problem("memory", message, ((rank, over[0][0] // 2),))
