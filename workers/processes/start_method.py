"""Finds how torch's DataLoader would start workers in this interpreter."""

import multiprocessing
from multiprocessing.context import (
    BaseContext,
    DefaultContext,
    ForkServerContext,
    SpawnContext,
)
from typing import Any

# Contexts that name a start method; one that a user made is used as it is.
_BY_NAME = (type(None), DefaultContext, SpawnContext, ForkServerContext)


def start_method(context: BaseContext | None = None) -> str:
    """Return "fork" where torch would fork, "forkserver" where it would start clean processes.

    `context` is a DataLoader's multiprocessing_context. Without one it is the interpreter's: what
    set_start_method chose, else its default ("fork" up to Python 3.13, "forkserver" after). Asking
    does not fix the interpreter's choice. "spawn" and "forkserver" both mean our fork server.

    >>> start_method(multiprocessing.get_context("spawn"))
    'forkserver'
    """
    chosen: Any = multiprocessing if context is None else context
    if isinstance(chosen, DefaultContext) or chosen is multiprocessing:
        # The first of all methods is the default, says their documentation.
        name = chosen.get_start_method(allow_none=True) or chosen.get_all_start_methods()[0]
    else:
        name = chosen.get_start_method()
    return "fork" if name == "fork" else "forkserver"


def worker_context(context: BaseContext | None) -> BaseContext | None:
    """Return what starts a loader's workers: our fork server for torch's own clean starts."""
    if type(context) not in _BY_NAME or start_method(context) == "fork":
        return context
    # here: a loop that forks needs nothing of it
    from .context import clean_context

    return clean_context()
