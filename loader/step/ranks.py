"""Finds the data-parallel ranks of this process, when they are first needed.

A loader may be made before torch.distributed is initialised: its constructor only checks that its
arguments agree with each other.

Processes of one data-parallel index (the tensor, context or pipeline ranks of one replica) train on
the same samples; those of different indexes never do. In units (sched.runtime.Units) the ranks of
encoders and generator work for all data-parallel indexes, and get the batches of each.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Dimensions whose processes get different samples; so do all that begin with "dp_".
DATA_DIMS = ("dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "shard")
# Dimensions whose processes share their samples.
SHARING_DIMS = ("tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline", "model")


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
class Topology:
    """An arrangement of processes; wrong values raise ValueError.

    dims: a DeviceMesh with named dimensions; or the size of each dimension by its name, in the
        order of torch's `init_device_mesh`: the last varies fastest from rank to rank. Megatron's
        default order is {"pp": ..., "dp": ..., "cp": ..., "tp": ...}.
    data: the dimensions whose processes get different samples. By default those that are named
        dp, ddp, fsdp, hsdp, data, batch, replicate or shard, or begin with dp_; tp, cp, sp and pp
        share theirs, and with another name in `dims` this must be given.

    >>> Topology({"dp": 2, "tp": 2}).seat(rank=3, world=4)
    Place(played=(1,), ranks=2, sharer=1, sharers=2, group=None, members=(0, 1, 2, 3))
    """

    dims: "DeviceMesh | Mapping[str, int]"
    data: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = self.names
        if isinstance(self.dims, Mapping):
            for name, size in self.dims.items():
                if type(size) is not int or size < 1:
                    raise ValueError(
                        f"topology: size of {name} is {size!r}, needed is a positive integer"
                    )
        # Taken for one that shares, a dimension would train on fewer samples; for one of the data,
        # on different ones where they must be the same. Neither would be noticed: so no guess.
        if self.data is None:
            if unknown := [
                name for name in names if not _is_data(name) and name not in SHARING_DIMS
            ]:
                raise ValueError(
                    f"topology: it is not known if processes along {', '.join(unknown)} get "
                    "different samples: give Topology(dims, data=(...)) with the names of the "
                    "dimensions that do"
                )
        elif missing := [name for name in self.data if name not in names]:
            raise ValueError(
                f"topology: data names {', '.join(missing)}, but the dimensions are "
                f"{', '.join(names)}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        if isinstance(self.dims, Mapping):
            return tuple(self.dims)
        names = getattr(self.dims, "mesh_dim_names", None)
        if names is None:
            raise ValueError(
                f"topology is {self.dims!r}: needed is a DeviceMesh with mesh_dim_names, or the "
                "size of each dimension such as {'dp': 2, 'tp': 2}"
            )
        return tuple(names)

    def seat(self, rank: int, world: int) -> Place:
        """Return the coordinates of a global rank, of `world`; ValueError if it has none."""
        dims = self.dims
        if isinstance(dims, Mapping):
            shape, members = tuple(dims.values()), tuple(range(world))
            if math.prod(shape) != world:
                sizes = " x ".join(f"{name} {size}" for name, size in dims.items())
                raise ValueError(
                    f"topology: {sizes} are {math.prod(shape)} processes, but the job has {world}"
                )
        else:
            shape, members = tuple(dims.mesh.shape), tuple(dims.mesh.flatten().tolist())
        if rank not in members:
            raise ValueError(
                f"this process has global rank {rank}, and the topology has {members}: open the "
                "loader only in processes that are in it"
            )
        # (number, count) of the processes along dimensions whose processes share samples, and along
        # those of the data; the last dimension varies fastest
        along = [(0, 1), (0, 1)]
        coordinates = np.unravel_index(members.index(rank), shape)
        for name, size, place in zip(self.names, shape, coordinates, strict=True):
            is_data = _is_data(name) if self.data is None else name in self.data
            number, count = along[is_data]
            along[is_data] = number * size + int(place), count * size
        (sharer, sharers), (own, ranks) = along
        return Place((own,), ranks, sharer, sharers, members=members)


@dataclass(frozen=True, slots=True)
class UnitTopology:
    """The processes of units: those of the language model, then of encoders and generator."""

    units: Any  # sched.runtime.Units: nothing of sched is imported here

    def seat(self, rank: int, world: int) -> Place:
        """Return the coordinates of a global rank; ValueError where the job has another size."""
        units = self.units
        if units.processes != world:
            raise ValueError(
                f"topology: the units have {units.processes} processes, but the job has {world}"
            )
        played: list[range] = [units.replicas(each) for each in range(units.ranks)]
        own = played[units.rank_of(rank)]
        # Those of encoders follow each replica's, so they have the same number in all of these.
        sharing = [
            process
            for number, indexes in enumerate(played)
            if own[0] in indexes
            for process in units.processes_of(number)
        ]
        ranks = 1 + max(indexes[-1] for indexes in played)
        sharer, members = sharing.index(rank), tuple(range(world))
        return Place(tuple(own), ranks, sharer, len(sharing), members=members)


def as_topology(topology: Any) -> Topology | UnitTopology:
    """Return a Topology; a DeviceMesh, a mapping of sizes or units are shorthand for one."""
    if isinstance(topology, Topology | UnitTopology):
        return topology
    is_units = callable(getattr(topology, "replicas", None))
    return UnitTopology(topology) if is_units else Topology(topology)


def _is_data(name: str) -> bool:
    return name in DATA_DIMS or name.startswith("dp_")


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
        # images travel between all ranks of a mesh
        is_units = self.dispatch == "images" and isinstance(self.topology, UnitTopology)
        if is_units and not getattr(self.topology.units, "spread", False):
            raise ValueError(
                "dispatch is 'images', and the topology is units whose encoders get whole "
                "microbatches: give Units spread=True, or use dispatch 'samples'"
            )

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
            world = os.environ.get("WORLD_SIZE", "")
            if self.process_group is not None or (world.isdecimal() and int(world) > 1):
                raise ValueError(
                    f"WORLD_SIZE is {world or 'not set'}, but this process has no process group, "
                    "so its data-parallel rank is not known: call "
                    "torch.distributed.init_process_group() before the loader is first used, or "
                    "give rank= and ranks="
                )
            alone: Place = Place((0,), 1) if self.topology is None else self.topology.seat(0, 1)
            return alone
        if self.topology is None:
            return _in_group(self.process_group)
        place: Place = self.topology.seat(dist.get_rank(), dist.get_world_size())
        if self.process_group is not None:
            grouped = _in_group(self.process_group)
            if (place.played, place.ranks) != (grouped.played, grouped.ranks):
                raise ValueError(
                    f"topology makes this process {place}, and process_group {grouped}: give one "
                    "of them, or the data-parallel group of this topology"
                )
        return place


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
