"""Proofs that every pass that must be there is there, once, and where it belongs."""

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Ints
from ..ir.kinds import is_kind, kind
from ..ir.passes import NO_MICROBATCH
from ..ir.problem import Problem

_SHOWN = 20


def culprit(graph: Graph, node: int) -> tuple[int, int]:
    """Where a pass stands: its rank and its index in the rank's list."""
    rank = int(graph.rank[node])
    return rank, node - int(graph.start[rank])


def words(graph: Graph) -> Iterator[Problem]:
    """Kinds are registered; stages, microbatches and ranks exist and fit together."""
    program = graph.program
    ranks = len(program.ranks)
    if bad := [s for s, rank in enumerate(program.placement) if not 0 <= rank < ranks]:
        yield Problem("words", f"stage {bad[0]} is placed on a rank that is not there")
        return
    for code, name in enumerate(graph.kinds):
        nodes = np.flatnonzero(graph.kind == code)
        if not is_kind(name) and name not in {b.name for b in program.barriers}:
            yield _at(graph, int(nodes[0]), f"unknown kind {name!r}")
            continue
        staged = is_kind(name) and kind(name).scope == "stage"
        high = program.stages if staged else ranks
        for node in nodes[graph.stage[nodes] >= high][:_SHOWN].tolist():
            what = "stage" if staged else "rank"
            yield _at(graph, node, f"there is no {what} {graph.stage[node]}, only {high}")
        nodes = nodes[graph.stage[nodes] < high]
        home = np.array(program.placement)[graph.stage[nodes]] if staged else graph.stage[nodes]
        for node in nodes[graph.rank[nodes] != home][:_SHOWN].tolist():
            yield _at(graph, node, f"it stands on rank {graph.rank[node]}, not its own")
        once = is_kind(name) and kind(name).once
        wrong = (graph.microbatch[nodes] == NO_MICROBATCH) != once
        wrong |= graph.microbatch[nodes] >= program.microbatches
        for node in nodes[wrong][:_SHOWN].tolist():
            yield _at(graph, node, f"microbatches go from 0 to {program.microbatches - 1}")


def _at(graph: Graph, node: int, what: str) -> Problem:
    return Problem("words", f"{graph.name(node)}: {what}", (culprit(graph, node),))


def complete(graph: Graph) -> Iterator[Problem]:
    """Each stage and microbatch goes forward and backward once; rank-wide passes are on all."""
    program = graph.program
    counts = {name: _count(graph, name) for name in graph.kinds}
    for name, count in counts.items():
        for stage, microbatch in np.argwhere(count > 1)[:_SHOWN].tolist():
            yield _twice(graph, name, stage, microbatch)
    zero = np.zeros((program.stages, program.microbatches), np.int64)
    full = np.ones_like(zero)
    yield from _missing("F", counts.get("F", zero), full)
    b, i, w = (counts.get(name, zero) for name in ("B", "I", "W"))
    if b.any() or i.any() or w.any():
        yield from _missing("B (or I and W)", b + np.maximum(i, w), full)
        yield from _missing("I", i, w)
        yield from _missing("W", w, i)
        both = np.argwhere((b > 0) & (np.maximum(i, w) > 0))[:_SHOWN].tolist()
        for stage, microbatch in both:
            yield Problem("complete", f"stage {stage} has B and I or W of microbatch {microbatch}")
    everywhere = {b.after for b in program.barriers if b.source == "every"}
    everywhere |= {name for b in program.barriers for where, name in b.before if where == "every"}
    everywhere |= {b.name for b in program.barriers if b.name in counts}
    for name in sorted(everywhere):
        if name in counts or (is_kind(name) and kind(name).role == "compute"):
            nothing = np.zeros((len(program.ranks), program.microbatches), np.int64)
            yield from _missing(name, counts.get(name, nothing), np.ones_like(nothing))


def _count(graph: Graph, name: str) -> Ints:
    program = graph.program
    nodes = np.flatnonzero(graph.kind == graph.kinds.index(name))
    staged = is_kind(name) and kind(name).scope == "stage"
    rows = program.stages if staged else len(program.ranks)
    column = np.maximum(graph.microbatch[nodes], 0)
    flat = graph.stage[nodes] * program.microbatches + column
    count = np.bincount(flat, minlength=rows * program.microbatches)
    return count.reshape(rows, program.microbatches)


def _missing(name: str, count: Ints, wanted: Ints) -> Iterator[Problem]:
    for stage, microbatch in np.argwhere((count == 0) & (wanted > 0))[:_SHOWN].tolist():
        yield Problem("complete", f"stage {stage} has no {name} of microbatch {microbatch}")


def _twice(graph: Graph, name: str, stage: int, microbatch: int) -> Problem:
    same = (graph.kind == graph.kinds.index(name)) & (graph.stage == stage)
    nodes = np.flatnonzero(same & (np.maximum(graph.microbatch, 0) == microbatch)).tolist()
    marks = tuple(culprit(graph, node) for node in nodes)
    return Problem("complete", f"{graph.name(nodes[0])} is there {len(nodes)} times", marks)
