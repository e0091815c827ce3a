"""Chooses how the batches of a plain loader's workers come to the trainer."""

import functools
from typing import Any, Literal, get_args

from ...workers.arena.memory import why_no_memory_files

Transport = Literal["auto", "arena", "inline"]


def checked_transport(transport: Transport, balance: object = None) -> Transport:
    """Return how batches travel; ValueError for what is no way, or cannot be had here."""
    if transport not in get_args(Transport):
        raise ValueError(f"transport is {transport!r}, allowed are {get_args(Transport)}")
    if transport == "arena" and balance is not None:
        raise ValueError(
            'transport="arena" is for a loop without balance: a balanced loader\'s samples travel '
            "inline; leave transport"
        )
    why_not = why_no_arena() if transport == "arena" else ""
    if why_not:
        raise ValueError(f'transport="arena" cannot be had: {why_not}; leave transport')
    return transport


def uses_arena(loader: Any) -> bool:
    """Return whether batches lie in shared memory that is used again; else torch carries them."""
    transport = getattr(loader, "transport", "auto")
    return transport == "arena" or (transport == "auto" and not why_no_arena())


@functools.cache
def why_no_arena() -> str:
    """Return why there is no arena in this process, "" if there is one."""
    return why_no_memory_files()
