"""Attaches a loader of ours to each transformers.Trainer of a suite, as its user would by one line.

swap_plugin.py imports this by itself, and calls one of its functions. Each trainer with a
train_dataset gets `attach_trainer` once it is built, by whatever subclass. One that is refused
keeps its loader. A line in PEER_NOTES says of each what became of it.
"""

import functools
import os
from pathlib import Path
from typing import Any

ATTACHED = "attached"


def attach_plain() -> None:
    """Attach loaders that yield what torch's would."""
    _attach(None)


def attach_balanced() -> None:
    """Attach loaders that balance."""
    _attach("auto")


def _attach(balance: str | None) -> None:
    from transformers import Trainer

    import counterpoise as cp

    depth = dict[int, int]()  # of calls of __init__, by the trainer that is being built

    def attach_after(kind: type[Any]) -> None:
        """Have a class attach once the outermost __init__ has returned."""
        init = vars(kind).get("__init__")
        if init is None:
            return

        @functools.wraps(init)
        def init_and_attach(trainer: Any, *args: Any, **named: Any) -> None:
            depth[id(trainer)] = depth.get(id(trainer), 0) + 1
            try:
                init(trainer, *args, **named)
            finally:
                depth[id(trainer)] -= 1
            if depth[id(trainer)] == 0 and trainer.train_dataset is not None:
                _note(_attach_one(trainer))

        kind.__init__ = init_and_attach

    def _attach_one(trainer: Any) -> str:
        try:
            cp.adapters.attach_trainer(trainer, balance=balance)
        except ValueError as refused:
            return " ".join(str(refused).split())
        return ATTACHED

    attach_after(Trainer)
    Trainer.__init_subclass__ = classmethod(attach_after)


def _note(line: str) -> None:
    with Path(os.environ["PEER_NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")
