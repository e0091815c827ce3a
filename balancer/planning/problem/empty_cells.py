"""Moves samples to the microbatches of a step that have none, the same in every way of a loop."""

from typing import TypeVar

T = TypeVar("T")
# (rank, microbatch) of one step.
Cell = tuple[int, int]


def fill_empty(usable: dict[Cell, list[T]]) -> list[tuple[T, Cell, Cell]] | None:
    """Move samples to cells without any; return each that has moved, its former cell, and its own.

    The largest microbatch gives (the first of several) its last one. Those that run at the same
    time on other ranks come first: what must be held for one microbatch of every rank then stays
    the same. None, and nothing is moved, if there are fewer samples than microbatches.

    >>> cells = {(0, 0): [], (0, 1): [4, 5], (1, 0): [6, 7], (1, 1): [8]}
    >>> fill_empty(cells), cells
    ([(7, (1, 0), (0, 0))], {(0, 0): [7], (0, 1): [4, 5], (1, 0): [6], (1, 1): [8]})
    """
    if sum(map(len, usable.values())) < len(usable):
        return None
    moved = []
    for cell in [cell for cell, samples in usable.items() if not samples]:
        able = [candidate for candidate, samples in usable.items() if len(samples) > 1]
        beside = [candidate for candidate in able if candidate[1] == cell[1]]
        giver = max(beside or able, key=lambda candidate: len(usable[candidate]))
        usable[cell].append(usable[giver].pop())
        moved.append((usable[cell][0], giver, cell))
    return moved
