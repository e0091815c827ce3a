"""The checker: proves that a program runs to its end and does what it should.

`check` raises if any of these fails, and shows the grid with the culprit marked:

- words: registered kinds, stages, microbatches and ranks that exist, every pass where its stage is;
- complete: each stage and microbatch once forward and once backward (B, or I and W), unless the
  program only goes forward; each vocabulary pass once on every rank;
- channels: what is sent from a rank to a peer is received there, in the same order;
- collectives: every communicator's in the same order on all ranks;
- ordered: no pass before one that it needs on its own rank, such as W before I;
- inputs: what a pass needs is made somewhere and brought to it;
- no wait-for cycle: in the graph that the simulator times;
- memory: no rank holds more than the limit, if one is given.

A program that passes has an execution in which every pass runs once and after what it needs,
whatever the times are. It assumes that sends and collectives do not block the rank (they run on
streams of their own, one communicator a barrier class and direction); blocking barriers block.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, make_graph
from ..ir.problem import Problem
from ..ir.program import Program
from ..simulation.costs import Costs, Table
from ..simulation.memory import memory_curves
from .complete import complete, words
from .marked_grid import marked_grid
from .order import channels, collectives, cycle, inputs, order


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a rank may hold, in the units of `buffer_bytes` (live activations)."""

    held: int
    buffer_bytes: Mapping[str, Table]


# In this order: a later one may assume that the earlier ones found nothing.
PROOFS: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    words,
    complete,
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

    `limit`: the most that any rank may hold at once, in units of `buffer_bytes`, by default in
    live activations.

    >>> from counterpoise.sched import schedule
    >>> check(schedule("1f1b", ranks=2, microbatches=2), limit=2)
    """
    if found := problems(program, limit=limit, buffer_bytes=buffer_bytes):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        grid = marked_grid(program, found[0].culprits)
        raise ValueError(f"{found[0].what}{more}\n{grid}")


def problems(
    program: Program, *, limit: int | None = None, buffer_bytes: Mapping[str, Table] | None = None
) -> tuple[Problem, ...]:
    """What is wrong with a program: all that the first failing proof found; () if it is sound."""
    if program.microbatches < 1 or not program.ranks or not program.placement:
        return (Problem("empty", "the program has no microbatches, ranks or stages"),)
    graph = make_graph(program)
    for proof in PROOFS:
        if found := tuple(proof(graph)):
            return found
    if limit is None:
        return ()
    return tuple(_memory(graph, Limit(limit, buffer_bytes or {"activation": 1})))


def _memory(graph: Graph, limit: Limit) -> Iterator[Problem]:
    """Memory by a rank's order alone: pass i runs from 2i to 2i + 1."""
    position = np.arange(graph.passes) - graph.start[graph.rank]
    costs = Costs({}, buffer_bytes=limit.buffer_bytes)
    curves = memory_curves(graph, costs, 2 * position, 2 * position + 1)
    for rank, curve in enumerate(curves):
        over = [(at, held) for at, held in curve if held > limit.held]
        if over:
            what = f"rank {rank} holds {max(h for _, h in over)}, more than the limit {limit.held}"
            yield Problem("memory", what, ((rank, over[0][0] // 2),))
