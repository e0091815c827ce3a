"""The meshes of units: the ranks of each, with their replicas, pipeline and tensor parallelism."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

_NAMES = ("dp", "pp", "tp")


def refuse_processes(processes: int, tp: int, sizes: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError for a number of processes that is no multiple of the units'.

    `sizes`: replicas and pipeline ranks of each unit.
    """
    ranks = [dp * pp for dp, pp in sizes]
    wanted = sum(ranks) * tp
    if processes % wanted:
        each = f" with {tp} processes for each rank" if tp > 1 else ""
        raise ValueError(
            f"there are {processes} processes, and units of {' and '.join(map(str, ranks))} "
            f"ranks{each}; start {wanted}, or plan a layout for {processes}"
        )


def unit_mesh(device: str, tp: int, sizes: tuple[tuple[int, int], ...]) -> DeviceMesh:
    """Return the mesh of this process' unit; all processes call this together.

    Made once: a mesh's process groups are never given back, and modules are divided over the same
    one that the pipeline uses. Raises ValueError as `refuse_processes` does.
    """
    return _made(device, tp, sizes, dist.group.WORLD)


@lru_cache(maxsize=4)
def _made(
    device: str,
    tp: int,
    sizes: tuple[tuple[int, int], ...],
    world: dist.ProcessGroup | None,
) -> DeviceMesh:
    del world  # meshes of one that was destroyed are of no use
    processes, own = dist.get_world_size(), dist.get_rank()
    refuse_processes(processes, tp, sizes)
    found, first = None, 0
    # torch wants every process to make every mesh, those of other units and jobs too.
    while first < processes:
        for dp, pp in sizes:
            members = range(first, first + dp * pp * tp)
            numbers = torch.tensor(members).view(dp, pp, tp)
            mesh = DeviceMesh(device, numbers, mesh_dim_names=_NAMES)
            if own in members:
                found = mesh
            first = members.stop
    assert found is not None  # every process is in one unit
    return found
