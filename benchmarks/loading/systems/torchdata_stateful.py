"""torchdata's StatefulDataLoader: torch's loader with a state_dict, of the same premade tensors."""

from .cell import Cell
from .premade import PremadeTensors
from .torchs import WorkersOfTorch, options

# Workers send their state with one batch of so many. Its default, with each, takes it longer.
_SNAPSHOT_EVERY = 1000


def open_loader(cell: Cell) -> WorkersOfTorch:
    """Return torchdata's loader, whose state nobody asks for."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    named = {**options(cell), "snapshot_every_n_steps": _SNAPSHOT_EVERY}
    return WorkersOfTorch(StatefulDataLoader(PremadeTensors(cell), **named))
