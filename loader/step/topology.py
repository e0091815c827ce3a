"""`Topology`: how a job's processes are laid out, and which of them share a data-parallel index.

Processes of one data-parallel index (the tensor, context or pipeline ranks of one replica) train
on the same samples; those of different indexes never do. A dimension belongs to one or the other
by its name. In units (sched.runtime.Units) the ranks of encoders and generator work for all
data-parallel indexes, and get the batches of each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Dimensions whose processes get different samples; so do all that begin with "dp_".
DATA_DIMS = ("dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "shard")
# Dimensions whose processes share their samples.
SHARING_DIMS = ("tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline", "model")
# Of those, the ones whose processes hold different layers.
PIPELINE_DIMS = ("pp", "pipeline")


@dataclass(frozen=True, slots=True)
class Seat:
    """A process' coordinates: its data-parallel index, and its number among those that share it.

    played: its indexes; of units, ranks of encoders have them all. members: the global ranks of all
    processes in the topology.
    """

    played: tuple[int, ...]
    ranks: int
    sharer: int
    sharers: int
    members: tuple[int, ...]


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
    Seat(played=(1,), ranks=2, sharer=1, sharers=2, members=(0, 1, 2, 3))
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
            if unknown := [name for name in names if not _is_data(name) and not _is_shared(name)]:
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

    def check_dispatch(self) -> None:
        """Raise ValueError for pipelines, where images cannot travel as `ImageDispatch` has them.

        Features of microbatches that are still to come would be needed by first stages only, at
        times that the schedule decides.
        """
        dims = self.dims
        sizes = dims.values() if isinstance(dims, Mapping) else dims.mesh.shape
        stages = math.prod(
            size for name, size in zip(self.names, sizes, strict=True) if name in PIPELINE_DIMS
        )
        if stages > 1:
            raise ValueError(
                f"dispatch is 'images', and the topology has {stages} pipeline stages: images "
                "travel between data-parallel ranks only. Use dispatch 'samples', and "
                "Pipeline(encoders=[EncoderSpec(...)], merge=...), which encodes on all ranks of "
                "the pipeline"
            )

    def seat(self, rank: int, world: int) -> Seat:
        """Return the coordinates of a global rank, of `world`; ValueError if it has none."""
        shape, members = self._layout(world)
        if rank not in members:
            raise ValueError(
                f"this process has global rank {rank}, and the topology has {members}: open the "
                "loader only in processes that are in it"
            )
        coordinates = _unravel(members.index(rank), shape)
        data = [_is_data(name) if self.data is None else name in self.data for name in self.names]
        own, ranks = _ravel(coordinates, shape, data)
        sharer, sharers = _ravel(coordinates, shape, [not each for each in data])
        return Seat((own,), ranks, sharer, sharers, members)

    def _layout(self, world: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the sizes of the dimensions, and the global ranks, the last dimension fastest."""
        if not isinstance(self.dims, Mapping):
            mesh = self.dims.mesh
            return tuple(mesh.shape), tuple(mesh.flatten().tolist())
        shape = tuple(self.dims.values())
        if math.prod(shape) != world:
            sizes = " x ".join(f"{name} {size}" for name, size in self.dims.items())
            raise ValueError(
                f"topology: {sizes} are {math.prod(shape)} processes, but the job has {world}"
            )
        return shape, tuple(range(world))


class ProcessUnits(Protocol):
    """Units of a job, such as `sched.runtime.Units`, as far as a loader asks them."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def processes(self) -> int:
        """The number of processes, of which each rank has one or more."""

    def rank_of(self, process: int) -> int:
        """Return the rank of a process."""

    def processes_of(self, rank: int) -> range:
        """Return the processes of a rank, which get the same samples."""

    def replicas(self, rank: int) -> range:
        """Return the data-parallel indexes of a rank."""


@dataclass(frozen=True, slots=True)
class UnitTopology:
    """The processes of units: those of the language model, then of encoders and generator."""

    units: ProcessUnits

    def check_dispatch(self) -> None:
        """Raise ValueError: units have ranks for the encoder already."""
        raise ValueError(
            "dispatch is 'images', and the topology is units, whose encoders have ranks of their "
            "own and get the images of all: use dispatch 'samples'"
        )

    def seat(self, rank: int, world: int) -> Seat:
        """Return the coordinates of a global rank; ValueError where the job has another size."""
        units = self.units
        if units.processes != world:
            raise ValueError(
                f"topology: the units have {units.processes} processes, but the job has {world}"
            )
        played = [units.replicas(each) for each in range(units.ranks)]
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
        return Seat(tuple(own), ranks, sharer, len(sharing), members)


def as_topology(topology: Any) -> Topology | UnitTopology:
    """Return a Topology; a DeviceMesh, a mapping of sizes or units are shorthand for one."""
    if isinstance(topology, Topology | UnitTopology):
        return topology
    is_units = callable(getattr(topology, "replicas", None))
    return UnitTopology(topology) if is_units else Topology(topology)


def _is_data(name: str) -> bool:
    return name in DATA_DIMS or name.startswith("dp_")


def _is_shared(name: str) -> bool:
    return name in SHARING_DIMS


def _unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinates of a number, the last varying fastest.

    >>> _unravel(5, (2, 3))
    (1, 2)
    """
    coordinates = []
    for size in reversed(shape):
        number, place = divmod(number, size)
        coordinates.append(place)
    return tuple(reversed(coordinates))


def _ravel(
    coordinates: tuple[int, ...], shape: tuple[int, ...], chosen: list[bool]
) -> tuple[int, int]:
    """Return the number of some of the coordinates, and how many there are.

    >>> _ravel((1, 2), (2, 3), [True, False]), _ravel((1, 2), (2, 3), [True, True])
    ((1, 2), (5, 6))
    """
    number, count = 0, 1
    for place, size, is_chosen in zip(coordinates, shape, chosen, strict=True):
        if is_chosen:
            number, count = number * size + place, count * size
    return number, count
