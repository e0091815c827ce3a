"""What the microbatches of a planned step hold once its holes are known: pure functions.

A hole is a sample that could not be used: it stays where the plan has it, and weighs nothing. Where
the loop can take no microbatch without samples (torch's default_collate makes no batch of none, and
a rank that left one out would make the others wait for ever), one that consists of holes gets a
sample of a microbatch that has more. Where none has more, the plan says whether it gets one that
weighs nothing, or the step is left out. All follows from the plan and the holes alone, so that a
resumed run does the same. Budgets hold, as a sample that fits among others fits alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..planning.problem.empty_cells import Cell, fill_empty
from ..planning.problem.shapes import Sizing
from ..protocol.parts import Weights
from .feed import PlannedStep

Cells = Mapping[Cell, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Contents:
    """The samples of a microbatch, by ordinal, what they cost, and the weights of its loss.

    padding: what of the costs is padding.
    """

    ordinals: tuple[int, ...]
    costs: tuple[int, ...]
    padding: tuple[int, ...]
    weights: Weights


def usable_cells(
    step: PlannedStep, holes: Collection[int], may_be_empty: bool, has_spares: bool = False
) -> dict[Cell, Sequence[int]] | None:
    """Return the usable ordinals of each microbatch of all ranks.

    Where none may be empty, and there are fewer than microbatches: None, or with has_spares some
    are without any, and get a sample that weighs nothing.
    """
    cells: dict[Cell, Sequence[int]] = {
        (r, m): microbatch.ordinals
        for r, rank in enumerate(step.batch.ranks)
        for m, microbatch in enumerate(rank)
    }
    if not holes and (may_be_empty or all(cells.values())):
        return cells
    usable = {cell: [each for each in own if each not in holes] for cell, own in cells.items()}
    if may_be_empty:
        return {**usable}
    return {**usable} if fill_empty(usable) is not None or has_spares else None


def contents_of(
    step: PlannedStep, cells: Cells, played: Sequence[int], label: int, sizing: Sizing
) -> dict[Cell, Contents]:
    """Return what the microbatches of the ranks `played` hold, with the weights of the step.

    label: the column that counts label tokens, -1 for none.
    """
    counts = np.fromiter(map(len, cells.values()), np.int64, len(cells))
    tokens = np.zeros(len(cells), np.int64)
    if label >= 0:
        rows = np.fromiter(chain.from_iterable(cells.values()), np.int64, int(counts.sum()))
        sums = np.concatenate([[0], np.cumsum(step.costs[rows - step.start, label])])
        ends = np.cumsum(counts)
        tokens = sums[ends] - sums[ends - counts]
    both = np.stack([counts, tokens], axis=1).reshape(len(step.batch.ranks), -1, 2)
    whole = both.sum(axis=(0, 1)).tolist()
    of_ranks = both.sum(axis=1)
    found = {}
    for rank in played:
        of_rank, of_cells = of_ranks[rank].tolist(), both[rank].tolist()
        for microbatch, of_cell in enumerate(of_cells):
            ordinals = tuple(cells[rank, microbatch])
            costs, padding = sizing.total(step.costs_of(ordinals))
            weights = Weights(*of_cell, *of_rank, *whole)
            found[rank, microbatch] = Contents(ordinals, costs, padding, weights)
    return found


def plain_contents(
    step: PlannedStep,
    played: tuple[int, ...],
    label: int,
    sizing: Sizing,
    may_be_empty: bool,
    has_spares: bool,
) -> dict[Cell, Contents]:
    """Return what a process' microbatches hold if no sample is a hole.

    Nothing for a step with fewer samples than microbatches, of which none may be empty.
    """
    cells = usable_cells(step, (), may_be_empty, has_spares)
    return {} if cells is None else contents_of(step, cells, played, label, sizing)
