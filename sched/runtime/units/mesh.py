"""The meshes of units: the ranks of each, with their replicas, pipeline and tensor parallelism."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .size import UnitSize

_NAMES = ("dp", "pp", "tp")


def refuse_processes(processes: int, sizes: Sequence[UnitSize]) -> None:
    """Raise ValueError for a number of processes that is no multiple of the units'."""
    wanted = sum(size.processes for size in sizes)
    if processes % wanted:
        each = " and ".join(
            f"{size.ranks} ranks" + (f" of {size.tp} processes" if size.tp > 1 else "")
            for size in sizes
        )
        raise ValueError(
            f"there are {processes} processes, and units of {each}; start {wanted}, or plan a "
            f"layout for {processes}"
        )


def unit_mesh(device: str, sizes: tuple[UnitSize, ...]) -> DeviceMesh:
    """Return the mesh of this process' unit; all processes call this together.

    Made once: a mesh's process groups are never given back, and modules are divided over the same
    one that the pipeline uses. Raises ValueError as `refuse_processes` does.
    """
    return _made(device, sizes, dist.group.WORLD)


def lane_groups(device: str, lanes: tuple[tuple[int, ...], ...]) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups of the lanes that this process is in; all processes call this together.

    `lanes`: the processes of each, by rank. Made once, as meshes are.
    """
    return _grouped(device, lanes, dist.group.WORLD)


@lru_cache(maxsize=4)
def _made(device: str, sizes: tuple[UnitSize, ...], world: dist.ProcessGroup | None) -> DeviceMesh:
    del world  # meshes of one that was destroyed are of no use
    processes, own = dist.get_world_size(), dist.get_rank()
    refuse_processes(processes, sizes)
    found, first = None, 0
    # torch wants every process to make every mesh, those of other units and jobs too.
    while first < processes:
        for size in sizes:
            members = range(first, first + size.processes)
            numbers = torch.tensor(members).view(size)
            mesh = DeviceMesh(device, numbers, mesh_dim_names=_NAMES)
            if own in members:
                found = mesh
            first = members.stop
    assert found is not None  # every process is in one unit
    return found


@lru_cache(maxsize=4)
def _grouped(
    device: str, lanes: tuple[tuple[int, ...], ...], world: dist.ProcessGroup | None
) -> tuple[dist.ProcessGroup, ...]:
    del world
    own = dist.get_rank()
    meshes = [DeviceMesh(device, torch.tensor(lane), mesh_dim_names=("ranks",)) for lane in lanes]
    return tuple(m.get_group() for m, lane in zip(meshes, lanes, strict=True) if own in lane)
