"""Chooses how batches and samples of a loader's workers come to the trainer."""

from typing import Literal, get_args

from .memory import find_memory_file_fault

Transport = Literal["auto", "arena", "direct", "inline"]


def checked_transport(transport: Transport, balancer: str | None = None) -> Transport:
    """Return how batches travel; ValueError for what is no way, or cannot be had here.

    balancer: the address of a balancer that is not the loader's own.
    """
    if transport not in get_args(Transport):
        raise ValueError(f"transport is {transport!r}, allowed are {get_args(Transport)}")
    # Each way in turn, by what it needs of the loader; last what shared memory needs of the kernel.
    if transport == "arena" and balancer is not None:
        raise ValueError(
            f'transport="arena" is for workers that the loader starts itself, not for those of '
            f"{balancer}: leave transport"
        )
    if transport == "direct" and not str(balancer).startswith(("tcp://", "file://")):
        raise ValueError(
            'transport="direct" is for workers on other hosts: give balancer="tcp://HOST:PORT", or '
            "leave transport"
        )
    why_not = find_memory_file_fault() if transport == "arena" else ""
    if why_not:
        raise ValueError(f'transport="{transport}" cannot be had: {why_not}; leave transport')
    return transport


def why_inline(transport: Transport) -> str:
    """Return why nothing is put into shared memory, "" if it is."""
    return 'transport="inline" was given' if transport == "inline" else find_memory_file_fault()
