"""Finds the data-parallel ranks of this process, and shares an address among ranks."""

import socket
from typing import Any

import torch.distributed as dist

from .errors import LoaderError


def find_ranks(
    rank: int | None, ranks: int | None, virtual_ranks: int | None
) -> tuple[tuple[int, ...], int]:
    """Return (the ranks that this process plays, all ranks).

    Without arguments torch.distributed is asked; virtual_ranks lets one process play them all.
    Raises ValueError for arguments that contradict each other.
    """
    if virtual_ranks is not None:
        if rank is not None or ranks is not None:
            raise ValueError("virtual_ranks plays all ranks in this process: leave rank and ranks")
        if virtual_ranks < 1:
            raise ValueError(f"virtual_ranks is {virtual_ranks}, it must be positive")
        return tuple(range(virtual_ranks)), virtual_ranks
    if (rank is None) != (ranks is None):
        raise ValueError("rank and ranks belong together: give both, or neither")
    if rank is not None and ranks is not None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank is {rank}, allowed are 0 to {ranks - 1}")
        return (rank,), ranks
    # Nothing was given: data parallelism alone, as torch.distributed has it.
    if is_distributed():
        return (dist.get_rank(),), dist.get_world_size()
    return (0,), 1


def is_distributed() -> bool:
    """Return whether torch.distributed has been initialised with several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def share(endpoint: str, error: str) -> str:
    """Return the address of rank 0's balancer on all ranks; rank 0 gives it, or its error.

    Called by all ranks. Raises LoaderError on every rank if rank 0 has an error, and on those
    that are on another host, which cannot reach it.
    """
    shared: list[Any] = [endpoint, error, socket.gethostname()]
    dist.broadcast_object_list(shared, src=0)
    address, reason, host = shared
    if reason:
        raise LoaderError(f"rank 0 could not start the balancer: {reason}")
    if host != socket.gethostname():
        raise LoaderError(
            f"rank 0's balancer is on host {host}, this rank on {socket.gethostname()}: start "
            "`counterpoise balancer` and give its address as balancer='tcp://HOST:PORT'"
        )
    return str(address)
