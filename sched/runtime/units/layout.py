"""Units: encoders, language model and generator on ranks of their own, with their own DP and PP.

With tensor parallelism every rank is `tp` processes, numbered next to each other. The processes
with one number among those of their ranks are a *lane*: an arrangement of its own, in which what
ranks exchange travels. So a rank here is a rank of a lane, and its processes do the same.

The job's ranks are numbered unit by unit: replica by replica of the language model, stage by stage,
then replica by replica of the encoders, then the generator's. A *seat* is a rank of the program of
one replica of the language model: its own ranks, then all ranks of encoders and generator, which
work for every replica.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from .mesh import unit_mesh


class UnitSize(NamedTuple):
    """The size of a unit: replicas, and pipeline ranks of each."""

    dp: int
    pp: int

    @property
    def ranks(self) -> int:
        """Return the number of the unit's ranks."""
        return self.dp * self.pp


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a job, to be given to Pipeline in place of a mesh.

    `backbone`, `encoder`: replicas and pipeline ranks of the language model, and of the encoders,
    each of which has an equal share of its layers on every rank of a pipeline. `ahead`: how many
    microbatches an encoder is ahead of the language model that takes them. `device`: the type of
    device that tensors are on. `generator`: replicas of the generator, whose pp is 1. None stands
    for a unit that the job does not have. `tp`: processes of each rank, which have a part of its
    modules each, the same number in all units.

    >>> units = Units(backbone=UnitSize(dp=2, pp=2), encoder=UnitSize(dp=3, pp=1))
    >>> units.ranks, units.seats, [units.seat(rank) for rank in range(units.ranks)]
    (7, 5, [0, 1, 0, 1, 2, 3, 4])
    >>> units = Units(backbone=UnitSize(dp=2, pp=2), encoder=UnitSize(dp=3, pp=1), tp=2)
    >>> units.processes, [units.rank_of(process) for process in (0, 1, 2, 13)]
    (14, [0, 0, 1, 6])
    """

    backbone: UnitSize
    encoder: UnitSize | None = None
    ahead: int = 2
    device: str = "cpu"
    generator: UnitSize | None = None
    tp: int = 1

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("backbone", "encoder", "generator"):
            size: UnitSize | None = getattr(self, name)
            if size is not None and min(size) < 1:
                raise ValueError(f"{name} has dp {size.dp} and pp {size.pp}; give 1 or more")
        if self.encoder is None and self.generator is None:
            raise ValueError("the backbone is the only unit; give encoder=, generator= or a mesh")
        if self.generator is not None and self.generator.pp > 1:
            raise ValueError(
                f"the generator has pp {self.generator.pp}, and the runtime runs it as one pass; "
                "give pp 1, and more replicas"
            )
        if self.tp < 1:
            raise ValueError(f"tp is {self.tp}; give 1 or more processes of each rank")
        if self.ahead < 0:
            raise ValueError(f"ahead is {self.ahead}; give 0 or more microbatches")

    @classmethod
    def from_layout(cls, path: str | Path, *, ahead: int = 2, device: str = "cpu") -> "Units":
        """Return the units of a layout that `counterpoise plan orchestrate --out` wrote.

        Raises ValueError, with the file's name, for anything else, and for units that the runtime
        does not form: all have the same tp, and a generator has pp 1.
        """
        try:
            sizes, tp = _read(json.loads(Path(path).read_text("utf-8")))
            return cls(**sizes, ahead=ahead, device=device, tp=tp)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def sizes(self) -> tuple[UnitSize, ...]:
        """Return the sizes of the units that there are, in the order of their ranks."""
        units = (self.backbone, self.encoder, self.generator)
        return tuple(unit for unit in units if unit is not None)

    @property
    def ranks(self) -> int:
        """Return the number of the job's ranks; each is `tp` processes."""
        return self.backbone.ranks + self.beside

    @property
    def processes(self) -> int:
        """Return the number of the job's processes."""
        return self.ranks * self.tp

    def rank_of(self, process: int) -> int:
        """Return the rank that a process of the job is one of; jobs may be side by side."""
        return process // self.tp % self.ranks

    def mesh(self) -> DeviceMesh:
        """Return the mesh of this process' unit, with the dimensions "dp", "pp" and "tp".

        `mesh()["tp"]` is what `parallelize_module` divides this rank's modules over, and
        `mesh()["dp"]` what `fully_shard` divides the language model's over. All processes of the
        job call this together, after `init_process_group`. Raises ValueError for a number of
        processes that is no multiple of the units'.
        """
        return unit_mesh(self.device, self.tp, self.sizes)

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


def _read(layout: Any) -> tuple[dict[str, UnitSize], int]:
    """Return the sizes of the units of a layout's JSON, by name, and the tp of all of them."""
    units = layout.get("units") if isinstance(layout, Mapping) else None
    if not isinstance(units, Mapping) or layout.get("version") != 1:
        raise ValueError('it is no layout: an object with "version": 1 and "units" is needed')
    if "backbone" not in units or not set(units) <= {"encoder", "backbone", "generator"}:
        raise ValueError(
            f"it has the units {', '.join(units)}; the runtime forms encoder, backbone, generator"
        )
    found = {name: _size(name, units[name]) for name in units}
    tensor = {name: tp for name, (_, tp) in found.items()}
    if len(set(tensor.values())) > 1:
        each = ", ".join(f"{name} tp {tp}" for name, tp in tensor.items())
        raise ValueError(
            f"it has {each}; the runtime gives all units one tp, since features go from each "
            "process to that of the same tensor-parallel index. Plan with modules that have times "
            "for one TP only, and let dp and pp differ"
        )
    return {name: size for name, (size, _) in found.items()}, max(tensor.values())


def _size(name: str, unit: Any) -> tuple[UnitSize, int]:
    given = unit if isinstance(unit, Mapping) else {}
    sizes: dict[str, Any] = {key: given.get(key) for key in ("tp", "dp", "pp")}
    if any(type(size) is not int or size < 1 for size in sizes.values()):
        raise ValueError(f"{name} is {unit!r}; give tp, dp and pp of 1 or more")
    return UnitSize(sizes["dp"], sizes["pp"]), sizes["tp"]
