"""The place of a process among units."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..links import MeshPlace, call_roll
from .layout import Units


@dataclass(frozen=True, slots=True)
class UnitPlace(MeshPlace):
    """This process among units: all ranks of the job are one pipeline's for links and standings.

    Replicas of the language model are not `replicas`, which have programs of their own: their
    copies of parameters are shared ones.
    """

    units: Units

    @property
    def ranks(self) -> int:
        """Return the number of ranks that have stages, of one replica."""
        return self.units.backbone.pp

    @property
    def seat(self) -> int:
        """Return the rank of the program that this process runs."""
        return self.units.seat(self.rank)

    def seat_of(self, rank: int) -> int:
        """Return the rank of the program that a rank of this job runs."""
        return self.units.seat(rank)

    @property
    def replica(self) -> int:
        """Return the data-parallel index; an encoder's rank has the first one's."""
        return self.units.replicas(self.rank)[0]

    def rooms(self, communicators: Iterable[str]) -> Mapping[str, Sequence[int]]:
        """Return the ranks that enter collectives on each communicator: a replica's."""
        replicas = range(self.units.backbone.dp)
        return {self.room(name, r): self._members(r) for name in communicators for r in replicas}

    def room(self, communicator: str, replica: int) -> str:
        """Return the name of a replica's communicator."""
        members = self._members(replica)
        return f"{communicator} of {members[0]} to {members[-1]}"

    def peers(self) -> dict[int, Sequence[int]]:
        """Return the ranks with which each rank enters collectives."""
        units = self.units
        return {r: self._members(units.replicas(r)[0]) for r in range(units.backbone.ranks)}

    def _members(self, replica: int) -> range:
        return self.units.pipeline(replica)


def place_units(units: Units, deadline_s: float) -> UnitPlace:
    """Return this process' place; all processes of the job call this together.

    Processes for several jobs are several jobs side by side. Raises ValueError for a number of
    processes that is no multiple of the units', and PeerLostError as `place_in` does.
    """
    processes = dist.get_world_size()
    if processes % units.ranks:
        raise ValueError(
            f"there are {processes} processes, and units of {units.backbone.ranks} and "
            f"{units.beside} ranks; start {units.ranks}, or plan a layout for {processes}"
        )
    if "cpu:gloo" in dist.get_backend_config() and dist.group.WORLD is not None:
        call_roll(dist.group.WORLD, deadline_s)
    sizes = processes // units.ranks, units.ranks
    mesh = init_device_mesh(units.device, sizes, mesh_dim_names=("jobs", "ranks"))
    rows = tuple(tuple(row) for row in mesh.mesh.tolist())
    device = torch.device("cpu")
    if units.device != "cpu":
        device = torch.device(units.device, torch.accelerator.current_device_index())
    rank = mesh["ranks"].get_local_rank()
    return UnitPlace(rows, rank, mesh["ranks"].get_group(), None, device, units)
