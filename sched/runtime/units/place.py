"""The place of a process, on a mesh or among units, and what all agree on about the model.

With tensor parallelism a pipeline has one process of each rank, and there are several side by side,
which are called lanes. Where units divide their modules over other numbers of processes, a process
of a unit with few of them is in several lanes. It enters the sums and exchanges of each of them
with the same, so all lanes find the same, and goes on with what the first of its lanes has found.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ...ir.program import Program
from ..gradients import parameters_of_fsdp
from ..links.meeting import await_all, find_device, gather_objects
from ..links.process_groups import add_up, group_ranks
from ..stage.agreement import ModelFacts, RankFacts, combine, ranks_with_shared
from ..vocabulary.shard import VocabularyShard
from .layout import Units, UnitSize, lane_groups, refuse_processes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """This process in the job: all pipelines' global ranks, its own rank in its one, its groups.

    `groups`: of the ranks of each pipeline that this process is in. `replicas`: on a mesh, of the
    ranks that hold the same stages. `lanes`: of those that do the same with other parts of the
    modules (tensor parallelism), each of which is in a pipeline of its own. `units`: the ranks of a
    pipeline; on a mesh those of one language model. All ranks of units are one pipeline for links
    and standings, and their language model's replicas have programs of their own, so that their
    copies of parameters are shared ones.
    """

    pipelines: tuple[tuple[int, ...], ...]
    rank: int
    groups: tuple[dist.ProcessGroup, ...]
    replicas: dist.ProcessGroup | None
    lanes: dist.ProcessGroup | None
    device: torch.device
    units: Units

    def gather(self, message: T, deadline_s: float) -> list[T]:
        """Return what every rank of this process' pipeline gives; all processes call this.

        Raises PeerLostError if a rank is lost or the deadline passes.
        """
        rows = [gather_objects(message, group, self.device, deadline_s) for group in self.groups]
        return rows[0]

    def add_up(self, tensor: Tensor, deadline_s: float) -> None:
        """Put the sum over the ranks of the pipeline, and its replicas, in place of a tensor.

        All processes call this. Raises RuntimeError as `gather` does.
        """
        add_up(tensor, self.groups, deadline_s)
        if self.replicas is not None:
            add_up(tensor, [self.replicas], deadline_s)

    @property
    def ranks(self) -> int:
        """Return the number of ranks that have stages, of one replica."""
        return self.units.backbone.pp

    @property
    def seat(self) -> int:
        """Return the rank of the program that this process runs."""
        return self.units.seat(self.rank)

    @property
    def replica(self) -> int:
        """Return the data-parallel index; an encoder's rank has the first one's."""
        first = self.units.replicas(self.rank)[0]
        return first if self.replicas is None else self.replicas.rank()

    @property
    def lane(self) -> int:
        """Return the tensor-parallel index."""
        return 0 if self.lanes is None else self.lanes.rank()

    @property
    def replica_ranks(self) -> frozenset[int]:
        """Return the global ranks that have this one's stages, over which FSDP2 divides them."""
        units = self.units
        if self.replicas is not None or self.seat >= self.ranks:
            return group_ranks(self.replicas)
        row = next(row for row in self.pipelines if dist.get_rank() in row)
        return frozenset(row[units.rank(r, self.seat)] for r in range(units.backbone.dp))

    def communicator_ranks(self, communicators: Iterable[str]) -> Mapping[str, Sequence[int]]:
        """Return the ranks that enter collectives on each communicator: a replica's."""
        return {
            self.communicator_name(name, replica): self.units.pipeline(replica)
            for name in sorted(communicators)
            for replica in range(self.units.backbone.dp)
        }

    def communicator_name(self, communicator: str, replica: int) -> str:
        """Return the name of a replica's communicator."""
        members = self.units.pipeline(replica)
        return f"{communicator} of {members[0]} to {members[-1]}"

    def peers(self) -> dict[int, Sequence[int]]:
        """Return the ranks with which each rank enters collectives."""
        units = self.units
        return {r: units.pipeline(units.replicas(r)[0]) for r in range(units.backbone.ranks)}


def place_on_mesh(mesh: DeviceMesh, deadline_s: float) -> UnitPlace:
    """Return this process' place; all processes of the job call this together.

    `mesh`: of all of them, or of this process' pipeline alone. Raises ValueError for a mesh without
    a dimension "pp", and PeerLostError if other processes do not come within the deadline.
    """
    names = mesh.mesh_dim_names or ()
    if "pp" not in names:
        raise ValueError(
            f"the mesh has the dimensions {names}; give it one named 'pp', such as "
            "init_device_mesh(device, (dp, pp), mesh_dim_names=('dp', 'pp'))"
        )
    await_all(deadline_s)
    size = mesh["pp"].size()
    ranks = mesh.mesh.movedim(names.index("pp"), -1).reshape(-1, size)
    pipelines = tuple(tuple(row) for row in ranks.tolist())
    device = find_device(mesh.device_type)
    if mesh.size() < dist.get_world_size():
        gathered = gather_objects(pipelines, dist.group.WORLD, device, deadline_s)
        pipelines = tuple(sorted({row for rows in gathered for row in rows}))
    return UnitPlace(
        pipelines,
        mesh["pp"].get_local_rank(),
        (mesh["pp"].get_group(),),
        mesh["dp"].get_group() if "dp" in names else None,
        mesh["tp"].get_group() if "tp" in names and mesh["tp"].size() > 1 else None,
        device,
        Units(UnitSize(1, size)),
    )


def place_units(units: Units, deadline_s: float) -> UnitPlace:
    """Return this process' place; all processes of the job call this together.

    Processes for several jobs are several jobs side by side. Raises ValueError for a number of
    processes that is no multiple of the units', and PeerLostError as `place_on_mesh` does.
    """
    processes, process = dist.get_world_size(), dist.get_rank()
    refuse_processes(processes, units.sizes)
    await_all(deadline_s)
    jobs = range(0, processes, units.processes)
    rows = tuple(tuple(job + member for member in lane) for job in jobs for lane in units.lanes())
    groups = lane_groups(units.device, rows, dist.group.WORLD)
    # The modules' own group: a connection of NCCL takes much memory on a device.
    lanes = None
    if any(unit.tp > 1 for unit in units.sizes):
        tp = units.mesh()["tp"]  # made by all processes, those of units without it, too
        lanes = tp.get_group() if tp.size() > 1 else None
    device = find_device(units.device)
    return UnitPlace(rows, units.rank_of(process), groups, None, lanes, device, units)


def replicated(
    place: UnitPlace,
    stages: Mapping[int, nn.Module],
    shard: VocabularyShard | None,
    known: Collection[int],
) -> dict[str, nn.Parameter]:
    """Return the parameters of which the language model's other replicas have copies, by name.

    `known`: the `id` of those that have a name already, as shared ones do. What FSDP2 divides over
    the replicas is no copy.
    """
    if place.units.backbone.dp == 1:
        return {}
    left_out = frozenset(known).union(
        *(parameters_of_fsdp(module, place.lanes) for module in stages.values())
    )
    copies = {
        f"stage {stage}: {name}": parameter
        for stage, module in stages.items()
        for name, parameter in module.named_parameters()
        if id(parameter) not in left_out
    }
    if shard is not None:
        rows = shard.named_parameters()
        copies |= {f"rank {place.seat}: {name}": p for name, p in rows if id(p) not in known}
    return copies


def agree(facts: RankFacts, program: Program, place: UnitPlace, deadline_s: float) -> ModelFacts:
    """Return the facts of the whole model, the same on every rank; all ranks of the job call this.

    `program`: of one replica. Raises ValueError on every rank if any has other stages than the
    program places on it, or replicas do not train or shard the same stages: they would wait for
    each other's gradients; and for a parameter that units of different tp share. Raises
    PeerLostError if the facts of all do not come within the deadline.
    """
    units = place.units
    by_rank = place.gather(facts, deadline_s)
    alike = gather_objects(by_rank, place.replicas, place.device, deadline_s)
    by_replica = [
        combine([by_rank[units.rank(replica, seat)] for seat in range(units.seats)], program)
        for replica in range(units.backbone.dp)
    ]
    shared = ranks_with_shared(by_rank)
    refuse_between_units(shared, units)
    by_replica = [replace(model, shared=shared) for model in by_replica]
    first, *later = by_replica
    if alike.count(by_rank) != len(alike) or any(model != first for model in later):
        rows = alike if len(alike) > 1 else by_replica
        raise ValueError(
            "replicas do not train or shard the same stages: "
            + "; ".join(f"data-parallel rank {n} has {row}" for n, row in enumerate(rows))
            + "; freeze and wrap modules alike on all of them before the pipeline is made"
        )
    return first


def refuse_between_units(shared: Mapping[str, Sequence[int]], units: Units) -> None:
    """Raise ValueError for a parameter of units whose ranks have other numbers of processes."""
    for name, ranks in shared.items():
        sizes = sorted({len(units.processes_of(rank)) for rank in ranks})
        if len(sizes) > 1:
            raise ValueError(
                f"{name} is shared by units of tp {' and '.join(map(str, sizes))}, whose copies "
                "cannot be summed process by process; share parameters within a unit, or give "
                "these units one tp"
            )
