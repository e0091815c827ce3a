"""Our DataLoader, plain or, where the cell says so, balanced over one rank."""

from typing import Any

from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.loader import DataLoader

from .cell import Cell
from .premade import PremadeTensors
from .torchs import options


def open_loader(cell: Cell) -> "DataLoader[Any, Any]":
    """Return our DataLoader of premade tensors."""
    named = options(cell)
    if cell.balanced:
        named |= {"balance": Balance("fixed"), "shuffle": False}
    return DataLoader(PremadeTensors(cell), **named)
