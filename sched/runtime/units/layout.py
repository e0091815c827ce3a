"""Units: encoders, language model and generator on ranks of their own, with their own parallelism.

With tensor parallelism every rank of a unit is `tp` processes, numbered next to each other, and a
*lane* has one process of each rank (`place.py`).

The job's ranks are numbered unit by unit: replica by replica of the language model, stage by stage,
then replica by replica of the encoders, then the generator's. A *seat* is a rank of the program of
one replica of the language model: its own ranks, then all ranks of encoders and generator, which
work for every replica.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


class UnitSize(NamedTuple):
    """The size of a unit: replicas, pipeline ranks of each, and processes that divide a rank's."""

    dp: int
    pp: int
    tp: int = 1

    @property
    def ranks(self) -> int:
        """Return the number of the unit's ranks."""
        return self.dp * self.pp

    @property
    def processes(self) -> int:
        """Return the number of the unit's processes."""
        return self.ranks * self.tp


_NAMES = ("dp", "pp", "tp")


def refuse_processes(processes: int, sizes: Sequence[UnitSize]) -> None:
    """Raise ValueError for a number of processes that is no multiple of the units'."""
    needed = sum(size.processes for size in sizes)
    if processes % needed:
        units = " and ".join(
            f"{size.ranks} ranks" + (f" of {size.tp} processes" if size.tp > 1 else "")
            for size in sizes
        )
        raise ValueError(
            f"there are {processes} processes, and units of {units}; start {needed}, or plan a "
            f"layout for {processes}"
        )


@lru_cache(maxsize=4)
def _unit_mesh(
    device: str, sizes: tuple[UnitSize, ...], world: dist.ProcessGroup | None
) -> DeviceMesh:
    """Return the mesh of this process' unit; all processes call this together.

    Made once for a `world`: a mesh's process groups are never given back, and modules are divided
    over the same one that the pipeline uses.
    """
    del world
    processes, process = dist.get_world_size(), dist.get_rank()
    refuse_processes(processes, sizes)
    own_mesh, first = None, 0
    # torch wants every process to make every mesh, those of other units and jobs too.
    while first < processes:
        for size in sizes:
            members = range(first, first + size.processes)
            mesh = DeviceMesh(device, torch.tensor(members).view(size), mesh_dim_names=_NAMES)
            if process in members:
                own_mesh = mesh
            first = members.stop
    assert own_mesh is not None  # every process is in one unit
    return own_mesh


@lru_cache(maxsize=4)
def lane_groups(
    device: str, lanes: tuple[tuple[int, ...], ...], world: dist.ProcessGroup | None
) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups of the lanes that this process is in; all call this, once for a `world`."""
    del world
    process = dist.get_rank()
    meshes = [DeviceMesh(device, torch.tensor(lane), mesh_dim_names=("ranks",)) for lane in lanes]
    return tuple(m.get_group() for m, lane in zip(meshes, lanes, strict=True) if process in lane)


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a job, to be given to Pipeline in place of a mesh.

    Args:
        backbone: The UnitSize of the language model.
        encoder: The UnitSize of the encoders, each of which has an equal share of its layers on
            every rank of a pipeline; default: none.
        ahead: How many microbatches an encoder is ahead of the language model; default 2.
        device: The type of device that tensors are on; default "cpu".
        generator: The UnitSize of the generator, whose pp is 1; default: none.
        spread: True if encoders' replicas share the images of each microbatch, as
            `Balance(dispatch="images")` has it; default: they get whole microbatches in turn.

    Raises ValueError for sizes below one and units that cannot run so.

    >>> units = Units(backbone=UnitSize(dp=2, pp=2), encoder=UnitSize(dp=3, pp=1))
    >>> units.ranks, units.seats, [units.seat(rank) for rank in range(units.ranks)]
    (7, 5, [0, 1, 0, 1, 2, 3, 4])
    >>> units = Units(backbone=UnitSize(dp=1, pp=2, tp=2), encoder=UnitSize(dp=2, pp=1))
    >>> units.processes, [units.rank_of(process) for process in range(6)]
    (6, [0, 0, 1, 1, 2, 3])
    >>> units.lanes()
    ((0, 2, 4, 5), (1, 3, 4, 5))
    """

    backbone: UnitSize
    encoder: UnitSize | None = None
    ahead: int = 2
    device: str = "cpu"
    generator: UnitSize | None = None
    spread: bool = False

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("backbone", "encoder", "generator"):
            size: UnitSize | None = getattr(self, name)
            if size is not None and min(size) < 1:
                raise ValueError(
                    f"{name} has dp {size.dp}, pp {size.pp} and tp {size.tp}; give 1 or more"
                )
        if self.generator is not None and self.generator.pp > 1:
            raise ValueError(
                f"the generator has pp {self.generator.pp}, and the runtime runs it as one pass; "
                "give pp 1, and more replicas"
            )
        if self.spread and (self.encoder is None or self.encoder.pp > 1):
            pp = None if self.encoder is None else self.encoder.pp
            raise ValueError(
                f"units spread images over an encoder's replicas, and its pp is {pp}; give it pp "
                "1, and more replicas"
            )
        if self.ahead < 0:
            raise ValueError(f"ahead is {self.ahead}; give 0 or more microbatches")

    @classmethod
    def from_layout(
        cls, path: str | Path, *, ahead: int = 2, device: str = "cpu", spread: bool = False
    ) -> "Units":
        """Return the units that `plan job --only orchestrate --out` wrote, or raise ValueError."""
        try:
            sizes = _read(json.loads(Path(path).read_text("utf-8")))
            return cls(**sizes, ahead=ahead, device=device, spread=spread)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def sizes(self) -> tuple[UnitSize, ...]:
        """Return the sizes of the units that there are, in the order of their ranks."""
        units = (self.backbone, self.encoder, self.generator)
        return tuple(unit for unit in units if unit is not None)

    @property
    def ranks(self) -> int:
        """Return the number of the job's ranks; each is `tp` processes of its unit."""
        return self.backbone.ranks + self.beside

    @property
    def processes(self) -> int:
        """Return the number of the job's processes."""
        return sum(unit.processes for unit in self.sizes)

    def rank_of(self, process: int) -> int:
        """Return the rank that a process of the job is one of; jobs may be side by side."""
        number = process % self.processes
        return next(rank for rank, processes in enumerate(self._processes()) if number in processes)

    def processes_of(self, rank: int) -> range:
        """Return the processes of a rank, by tensor-parallel index."""
        return self._processes()[rank]

    def lanes(self) -> tuple[tuple[int, ...], ...]:
        """Return the lanes: of each, its process of every rank. Numbers need not divide.

        >>> Units(backbone=UnitSize(1, 1, tp=3), encoder=UnitSize(1, 1, tp=2)).lanes()
        ((0, 3), (1, 3), (1, 4), (2, 4))
        """
        finest, ranks = lcm(*(unit.tp for unit in self.sizes)), self._processes()
        rows = (tuple(row[at * len(row) // finest] for row in ranks) for at in range(finest))
        return tuple(dict.fromkeys(rows))

    def _processes(self) -> list[range]:
        """Return the processes of every rank."""
        processes, first = [], 0
        for unit in self.sizes:
            for _ in range(unit.ranks):
                processes.append(range(first, first + unit.tp))
                first += unit.tp
        return processes

    def mesh(self) -> DeviceMesh:
        """Return the mesh of this process' unit, with the dimensions "dp", "pp" and "tp".

        `parallelize_module` divides this rank's modules over "tp", `fully_shard` the language
        model's over "dp". All processes of the job call this together, after `init_process_group`.
        Raises ValueError for a number of processes that is no multiple of the units'.
        """
        return _unit_mesh(self.device, self.sizes, dist.group.WORLD)

    @property
    def beside(self) -> int:
        """Return the number of ranks of encoders and generator."""
        return sum(unit.ranks for unit in self.sizes[1:])

    @property
    def encoder_seats(self) -> range:
        """Return the seats of the encoders, replica by replica."""
        first = self.backbone.pp
        return range(first, first + (0 if self.encoder is None else self.encoder.ranks))

    @property
    def generator_seats(self) -> range:
        """Return the seats of the generator, which follow the encoders'."""
        first = self.encoder_seats.stop
        return range(first, first + (0 if self.generator is None else self.generator.ranks))

    @property
    def seats(self) -> int:
        """Return the number of ranks of the program of one replica."""
        return self.backbone.pp + self.beside

    def seat(self, rank: int) -> int:
        """Return a rank's seat, in the programs of all replicas that it works for."""
        beyond = rank - self.backbone.ranks
        return rank % self.backbone.pp if beyond < 0 else self.backbone.pp + beyond

    def replicas(self, rank: int) -> range:
        """Return the replicas of the language model that a rank works for."""
        if rank >= self.backbone.ranks:
            return range(self.backbone.dp)
        return range(rank // self.backbone.pp, rank // self.backbone.pp + 1)

    def rank(self, replica: int, seat: int) -> int:
        """Return the rank on a seat of a replica's program."""
        beyond = seat - self.backbone.pp
        return replica * self.backbone.pp + seat if beyond < 0 else self.backbone.ranks + beyond

    def pipeline(self, replica: int) -> range:
        """Return the ranks of a replica of the language model."""
        return range(replica * self.backbone.pp, (replica + 1) * self.backbone.pp)


def _read(layout: Any) -> dict[str, UnitSize]:
    """Return the sizes of the units of a layout's JSON, by name."""
    units = layout.get("units") if isinstance(layout, Mapping) else None
    if not isinstance(units, Mapping) or layout.get("version") != 1:
        raise ValueError('it is no layout: an object with "version": 1 and "units" is needed')
    if "backbone" not in units or not set(units) <= {"encoder", "backbone", "generator"}:
        raise ValueError(
            f"it has the units {', '.join(units)}; the runtime forms encoder, backbone, generator"
        )
    return {name: _size(name, units[name]) for name in units}


def _size(name: str, unit: Any) -> UnitSize:
    settings = unit if isinstance(unit, Mapping) else {}
    sizes: list[Any] = [settings.get(key) for key in UnitSize._fields]
    if any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(f"{name} is {unit!r}; give tp, dp and pp of 1 or more")
    return UnitSize(*sizes)
