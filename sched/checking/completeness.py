"""Prove that every pass refers to things that exist, is on its rank, and is there exactly once."""

from collections.abc import Iterator

import numpy as np

from ..ir.channels import crossing_results
from ..ir.graph import Graph, Ints
from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH, Pass
from ..ir.problem import Problem
from ..ir.program import Program

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
            what = f"stage {stage} is placed on rank {rank}; there are {ranks} ranks"
            yield Problem("references", what)
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
    lost = [(e, item) for e in program.edges for item in e if item not in places]
    for edge, item in lost[:_SHOWN]:
        marks = tuple(places[end] for end in edge if end in places)
        what = f"the edge {edge} names {item}, which is not in the program"
        yield Problem("references", what, marks)


def _edge_messages(
    graph: Graph, name: str, nodes: Ints, carried: set[tuple[Pass, int]]
) -> Iterator[Problem]:
    """Check that an edge asks for each message of a kind, from and to its ranks."""
    end, what = name.split("_X_")
    senders = {source: graph.program.rank_of(source) for source, _ in carried}
    for node in nodes.tolist():
        source = Pass(int(graph.stage[node]), what, int(graph.microbatch[node]))
        rank = int(graph.rank[node])
        asked = (source, rank) in carried if end == "RECV" else senders.get(source) == rank
        if not asked:
            way = "to" if end == "RECV" else "from"
            yield _reference(graph, node, f"no edge takes the result of {source} {way} rank {rank}")


def _stages(graph: Graph, name: str, nodes: Ints) -> Iterator[Problem]:
    """Check that the stages of a kind's passes exist, and that each pass is on its stage's rank."""
    staged = _is_staged(name)
    count, what = _rows(graph, name), "stage" if staged else "rank"
    exists = graph.stage[nodes] < count
    for node in nodes[~exists][:_SHOWN].tolist():
        yield _reference(graph, node, f"there is no {what} {graph.stage[node]}, only {count}")
    nodes = nodes[exists]
    placement = np.array(graph.program.placement)
    home = placement[graph.stage[nodes]] if staged else graph.stage[nodes]
    wrong = np.flatnonzero(graph.rank[nodes] != home)[:_SHOWN]
    for node, own in zip(nodes[wrong].tolist(), home[wrong].tolist(), strict=True):
        what = f"it is on rank {graph.rank[node]}, but belongs on rank {own}"
        yield _reference(graph, node, what)


def _microbatches(graph: Graph, name: str, nodes: Ints) -> Iterator[Problem]:
    """Check that a kind's passes have a microbatch of the program, or none if done once a step."""
    microbatch = graph.microbatch[nodes]
    once = is_kind(name) and kind(name).once
    wrong = (microbatch == NO_MICROBATCH) != once
    wrong |= microbatch >= graph.program.microbatches
    for node in nodes[wrong][:_SHOWN].tolist():
        what = f"microbatches go from 0 to {graph.program.microbatches - 1}"
        yield _reference(graph, node, what)


def _reference(graph: Graph, node: int, what: str) -> Problem:
    return Problem("references", f"{graph.name(node)}: {what}", (culprit(graph, node),))


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
        what = f"stage {stage} has both B and I or W of microbatch {microbatch}"
        yield Problem("completeness", what)


def _on_all_ranks(graph: Graph, counts: dict[str, Ints]) -> Iterator[Problem]:
    program = graph.program
    none = np.zeros((len(program.ranks), program.microbatches), np.int64)
    wanted = np.zeros_like(none)
    wanted[list(program.members)] = 1
    joined = {b.after for b in program.barriers if b.source == "every"}
    joined |= {name for b in program.barriers for where, name in b.before if where == "every"}
    joined |= {b.name for b in program.barriers if b.name in counts}
    for name in sorted(joined):
        # Kinds that lowering adds (C) may be absent before it; compute kinds may not.
        if name in counts or (is_kind(name) and kind(name).role == "compute"):
            yield from _missing(name, counts.get(name, none), wanted)


def _is_staged(name: str) -> bool:
    """Return whether the stage of this kind's passes is a model stage rather than a rank."""
    return is_kind(name) and kind(name).scope == "stage"


def _rows(graph: Graph, name: str) -> int:
    return graph.program.stages if _is_staged(name) else len(graph.program.ranks)


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


def _missing(name: str, count: Ints, wanted: Ints) -> Iterator[Problem]:
    for stage, microbatch in np.argwhere((count == 0) & (wanted > 0))[:_SHOWN].tolist():
        yield Problem("completeness", f"stage {stage} has no {name} of microbatch {microbatch}")


def _repeated(graph: Graph, name: str, stage: int, microbatch: int) -> Problem:
    same = (graph.kind == graph.kinds.index(name)) & (graph.stage == stage)
    nodes = np.flatnonzero(same & (np.maximum(graph.microbatch, 0) == microbatch)).tolist()
    marks = tuple(culprit(graph, node) for node in nodes)
    return Problem("completeness", f"{graph.name(nodes[0])} is there {len(nodes)} times", marks)
