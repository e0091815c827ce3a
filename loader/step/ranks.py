"""Finds the data-parallel ranks of this process, when they are first needed.

A loader may be made before torch.distributed is initialised: its constructor only checks that its
arguments agree with each other.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from .topology import Topology, UnitTopology, as_topology


@dataclass(frozen=True, slots=True)
class Place:
    """The data-parallel ranks that this process plays, of how many, and who shares them.

    sharer: this process' number among the `sharers` that get the same samples. group: the process
    group where the others are found, None for the default one; members: their global ranks, empty
    for all of the group.
    """

    played: tuple[int, ...]
    ranks: int
    sharer: int = 0
    sharers: int = 1
    group: Any = field(default=None, compare=False)
    members: tuple[int, ...] = ()

    @property
    def is_alone(self) -> bool:
        """True if no other process takes part."""
        return len(self.played) == self.ranks and self.sharers == 1

    def __str__(self) -> str:
        shared = f", shared by {self.sharers} processes" if self.sharers > 1 else ""
        ranks = ", ".join(map(str, self.played))
        return f"data-parallel rank {ranks} of {self.ranks}{shared}"


@dataclass(frozen=True, slots=True)
class RankArguments:
    """The arguments of a loader that say which ranks it plays; ValueError if they contradict.

    dispatch: what travels between these ranks, as in Balance.
    """

    rank: int | None = None
    ranks: int | None = None
    virtual_ranks: int | None = None
    process_group: Any = None
    topology: Any = None
    dispatch: str = "samples"

    def __post_init__(self) -> None:
        if self.virtual_ranks is not None:
            if self.rank is not None or self.ranks is not None:
                raise ValueError(
                    "virtual_ranks plays all ranks in this process: leave rank and ranks"
                )
            if self.virtual_ranks < 1:
                raise ValueError(f"virtual_ranks is {self.virtual_ranks}, it must be positive")
        if (self.rank is None) != (self.ranks is None):
            raise ValueError("rank and ranks belong together: give both, or neither")
        if self.rank is not None and self.ranks is not None and not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank is {self.rank}, allowed are 0 to {self.ranks - 1}")
        # These are asked for the rank at the first use: a number beside them could contradict them.
        for name in ("process_group", "topology"):
            if self.are_given and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} says which rank this process plays: leave rank, ranks, virtual_ranks"
                )
        if self.topology is not None:
            object.__setattr__(self, "topology", as_topology(self.topology))
            if self.dispatch == "images":
                self.topology.check_dispatch()

    @property
    def are_given(self) -> bool:
        """True if the ranks are given as numbers: nobody has to be asked."""
        return self.rank is not None or self.virtual_ranks is not None

    def find(self) -> Place:
        """Return the ranks of this process, asking torch.distributed unless they are given.

        Raises ValueError if this process is one of several and cannot know which.
        """
        if self.virtual_ranks is not None:
            return Place(tuple(range(self.virtual_ranks)), self.virtual_ranks)
        if self.rank is not None and self.ranks is not None:
            return Place((self.rank,), self.ranks)
        if not has_process_group():
            self._refuse_unknown_rank()
            return _placed(self.topology, 0, 1) if self.topology is not None else Place((0,), 1)
        if self.topology is None:
            return _in_group(self.process_group)
        place = _placed(self.topology, dist.get_rank(), dist.get_world_size())
        if self.process_group is not None:
            _check_agreement(place, _in_group(self.process_group))
        return place

    def _refuse_unknown_rank(self) -> None:
        world = os.environ.get("WORLD_SIZE", "")
        if self.process_group is not None or (world.isdecimal() and int(world) > 1):
            raise ValueError(
                f"WORLD_SIZE is {world or 'not set'}, but this process has no process group, so "
                "its data-parallel rank is not known: call torch.distributed.init_process_group() "
                "before the loader is first used, or give rank= and ranks="
            )


def check_same_place(before: Place | None, now: Place, advice: str) -> None:
    """Raise ValueError, with advice, if this process' ranks have changed since they were found."""
    if now != before:
        raise ValueError(
            f"this process was {before} when its ranks were first found, and is {now} now: {advice}"
        )


def has_process_group() -> bool:
    """Return whether torch.distributed has been initialised."""
    return dist.is_available() and dist.is_initialized()


def _in_group(group: Any) -> Place:
    """Return this process' rank in a process group: the data-parallel one, as in DDP."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"this process has global rank {dist.get_rank()} and is not in process_group: give "
            "the data-parallel group that it is in"
        )
    # torch 2.6 takes no None for the group of all processes here.
    members = tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
    return Place((rank,), dist.get_world_size(group), group=group, members=members)


def _placed(topology: Topology | UnitTopology, rank: int, world: int) -> Place:
    """Return this process' place in a topology; the others are found in the default group."""
    seat = topology.seat(rank, world)
    return Place(seat.played, seat.ranks, seat.sharer, seat.sharers, members=seat.members)


def _check_agreement(place: Place, grouped: Place) -> None:
    if (place.played, place.ranks) != (grouped.played, grouped.ranks):
        raise ValueError(
            f"topology makes this process {place}, and process_group {grouped}: give one of them, "
            "or the data-parallel group of this topology"
        )
