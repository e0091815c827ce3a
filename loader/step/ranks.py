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
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from ...balancer.near_names import explain_arguments

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
                f"ranks is {self.dims!r:.80}: needed is a DeviceMesh with mesh_dim_names, the size "
                "of each dimension such as {'dp': 2, 'tp': 2}, a process group, or (3, 8) for rank "
                "3 of 8"
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
        (sharer, sharers), (played, ranks) = along
        return Place((played,), ranks, sharer, sharers, members=members)


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
        played: list[range] = [units.replicas(number) for number in range(units.ranks)]
        here = played[units.rank_of(rank)]
        # Those of encoders follow each replica's, so they have the same number in all of these.
        sharing = [
            process
            for number, indexes in enumerate(played)
            if here[0] in indexes
            for process in units.processes_of(number)
        ]
        ranks = 1 + max(indexes[-1] for indexes in played)
        sharer, members = sharing.index(rank), tuple(range(world))
        return Place(tuple(here), ranks, sharer, len(sharing), members=members)


def as_topology(topology: Any) -> Topology | UnitTopology:
    """Return a Topology; a DeviceMesh, a mapping of sizes or units are shorthand for one."""
    if isinstance(topology, Topology | UnitTopology):
        return topology
    is_units = callable(getattr(topology, "replicas", None))
    return UnitTopology(topology) if is_units else Topology(topology)


def _is_data(name: str) -> bool:
    return name in DATA_DIMS or name.startswith("dp_")


@explain_arguments()
@dataclass(frozen=True, slots=True)
class Ranks:
    """The data-parallel ranks that this process plays; ValueError for contradictions.

    Args:
        of: What says this process' rank: a DeviceMesh with named dimensions; sizes of dimensions
            such as {"dp": 2, "tp": 2}; a Topology; a pipeline's Units; the data-parallel process
            group, as in DDP; or (3, 8) for rank 3 of 8. Default: torch.distributed's, or 0 of 1.
        virtual: This process plays so many ranks; default: those that `of` says.
        name: Tells loaders over the same data apart that not all processes open; default "".

    >>> Ranks((3, 8)).find()
    Place(played=(3,), ranks=8, sharer=0, sharers=1, group=None, members=())
    """

    of: Any = None
    _: KW_ONLY
    virtual: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.virtual is not None:
            if self.of is not None:
                raise ValueError(
                    f"Ranks({self.of!r:.40}, virtual={self.virtual}): virtual plays all ranks in "
                    "this process, and another value says which rank it plays: leave one of them"
                )
            if type(self.virtual) is not int or self.virtual < 1:
                raise ValueError(f"virtual is {self.virtual!r}, needed is a positive integer")
        if type(self.of) is int and not _is_group(self.of):
            raise ValueError(
                f"ranks is {self.of}: write ranks=(rank, {self.of}) for one rank of {self.of}, or "
                f"ranks=Ranks(virtual={self.of}) where this process plays all of them"
            )
        if isinstance(self.of, tuple):
            _check_numbers(self.of)
        elif self.of is not None and not _is_group(self.of):
            object.__setattr__(self, "of", as_topology(self.of))

    @property
    def are_numbers(self) -> bool:
        """True if the ranks are numbers, for which torch.distributed is not asked."""
        return self.virtual is not None or isinstance(self.of, tuple)

    def check_dispatch(self, dispatch: str) -> None:
        """Raise ValueError where images travel between ranks that get whole microbatches."""
        # images travel between all ranks of a mesh
        is_units = dispatch == "images" and isinstance(self.of, UnitTopology)
        if is_units and not getattr(self.of.units, "spread", False):
            raise ValueError(
                "dispatch is 'images', and ranks are units whose encoders get whole microbatches: "
                "give Units spread=True, or use dispatch 'samples'"
            )

    def find(self) -> Place:
        """Return the ranks of this process, asking torch.distributed unless they are numbers.

        Raises ValueError if this process is one of several and cannot know which.
        """
        if self.virtual is not None:
            return Place(tuple(range(self.virtual)), self.virtual)
        if isinstance(self.of, tuple):
            return Place((self.of[0],), self.of[1])
        is_group = self.of is None or _is_group(self.of)
        if not has_process_group():
            world = os.environ.get("WORLD_SIZE", "")
            if world.isdecimal() and int(world) > 1:
                raise ValueError(
                    f"WORLD_SIZE is {world}, but this process has no process group, so its "
                    "data-parallel rank is not known: call "
                    "torch.distributed.init_process_group() before the loader is first used, or "
                    "give ranks=(rank, number of ranks)"
                )
            return Place((0,), 1) if is_group else self.of.seat(0, 1)
        if is_group:
            return _in_group(self.of)
        return self.of.seat(dist.get_rank(), dist.get_world_size())  # type: ignore[no-any-return]


def as_ranks(ranks: Any) -> Ranks:
    """Return Ranks; whatever says a rank is short for it, and None for the default.

    >>> as_ranks((3, 8))
    Ranks(of=(3, 8), virtual=None, name='')
    """
    return ranks if isinstance(ranks, Ranks) else Ranks(ranks)


def _check_numbers(numbers: tuple[Any, ...]) -> None:
    if len(numbers) != 2 or any(type(number) is not int for number in numbers):
        raise ValueError(f"ranks is {numbers!r:.80}: give (rank, number of ranks), such as (3, 8)")
    rank, ranks = numbers
    if not 0 <= rank < ranks:
        raise ValueError(f"ranks is {numbers}: of {ranks} ranks, rank may be 0 to {ranks - 1}")


def _is_group(of: Any) -> bool:
    """Return whether a value is a process group, also where this process is not in it."""
    if not dist.is_available():
        return False
    return isinstance(of, dist.ProcessGroup) or of == dist.GroupMember.NON_GROUP_MEMBER


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
            f"this process has global rank {dist.get_rank()} and is not in the process group "
            "of ranks=: give the data-parallel group that it is in"
        )
    # torch 2.6 takes no None for the group of all processes here.
    members = tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
    return Place((rank,), dist.get_world_size(group), group=group, members=members)
