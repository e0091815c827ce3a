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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, make_graph
from ..ir.problem import Problem
from ..ir.program import Program
from ..simulation.costs import Costs, Table
from ..simulation.memory import memory_curves
from .completeness import completeness, references
from .marked_grid import marked_grid
from .order import channels, collectives, cycle, inputs, order


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most that a rank may hold, and what each buffer weighs in the same unit."""

    most: int
    buffer_bytes: Mapping[str, Table]


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
    if found := problems(program, limit=limit, buffer_bytes=buffer_bytes):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        grid = marked_grid(program, found[0].culprits)
        raise ValueError(f"{found[0].message}{more}\n{grid}")


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
        if found := tuple(proof(graph)):
            return found
    if limit is None:
        return ()
    return tuple(_memory(graph, MemoryLimit(limit, buffer_bytes or {"activation": 1})))


def _memory(graph: Graph, limit: MemoryLimit) -> Iterator[Problem]:
    """Check the memory, which depends on each rank's order alone: pass i runs from 2i to 2i + 1."""
    position = np.arange(graph.passes) - graph.start[graph.rank]
    costs = Costs({}, buffer_bytes=limit.buffer_bytes)
    curves = memory_curves(graph, costs, 2 * position, 2 * position + 1)
    for rank, curve in enumerate(curves):
        over = [(at, held) for at, held in curve if held > limit.most]
        if over:
            most = max(held for _, held in over)
            what = f"rank {rank} holds {most}, more than the limit {limit.most}"
            yield Problem("memory", what, ((rank, over[0][0] // 2),))
