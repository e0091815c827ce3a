"""The place of a process among units, and what all units agree on about the model."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import nn

from ...ir.program import Program
from ..gradients import parameters_of_fsdp
from ..links.place import MeshPlace, await_all, device_of
from ..stage.agreement import ModelFacts, RankFacts, combine, ranks_with_shared
from ..vocabulary.shard import VocabularyShard
from .layout import Units, lane_groups, refuse_processes


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

    @property
    def replica(self) -> int:
        """Return the data-parallel index; an encoder's rank has the first one's."""
        return self.units.replicas(self.rank)[0]

    @property
    def replica_ranks(self) -> frozenset[int]:
        """Return the global ranks that have this one's stages, over which FSDP2 divides them."""
        units = self.units
        if self.seat >= units.backbone.pp:
            return frozenset()
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


def place_units(units: Units, deadline_s: float) -> UnitPlace:
    """Return this process' place; all processes of the job call this together.

    Processes for several jobs are several jobs side by side. Raises ValueError for a number of
    processes that is no multiple of the units', and PeerLostError as `place_in` does.
    """
    processes, own = dist.get_world_size(), dist.get_rank()
    refuse_processes(processes, units.sizes)
    await_all(deadline_s)
    jobs = range(0, processes, units.processes)
    rows = tuple(tuple(job + each for each in lane) for job in jobs for lane in units.lanes())
    groups = lane_groups(units.device, rows, dist.group.WORLD)
    # The modules' own group: a connection of NCCL takes much memory on a device.
    lanes = None
    if any(unit.tp > 1 for unit in units.sizes):
        tp = units.mesh()["tp"]  # made by all processes, those of units without it, too
        lanes = tp.get_group() if tp.size() > 1 else None
    device = device_of(units.device)
    return UnitPlace(rows, units.rank_of(own), groups, None, lanes, device, units)


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
    left_out = frozenset(known).union(
        *(parameters_of_fsdp(module, place.lanes) for module in stages.values())
    )
    found = {
        f"stage {stage}: {name}": parameter
        for stage, module in stages.items()
        for name, parameter in module.named_parameters()
        if id(parameter) not in left_out
    }
    if shard is not None:
        rows = shard.named_parameters()
        found |= {f"rank {place.seat}: {name}": p for name, p in rows if id(p) not in known}
    return found


def agree_units(
    own: RankFacts, program: Program, place: UnitPlace, deadline_s: float
) -> ModelFacts:
    """Return the facts of the whole model, the same on every rank; all ranks of the job call this.

    `program`: of one replica. Raises ValueError and PeerLostError as `agree` does, and ValueError
    for a parameter that units of different tp share.
    """
    units = place.units
    everyone = place.gather(own, deadline_s)
    found = [
        combine([everyone[units.rank(replica, seat)] for seat in range(units.seats)], program)
        for replica in range(units.backbone.dp)
    ]
    shared = ranks_with_shared(everyone)
    refuse_between_units(shared, units)
    facts = [replace(one, shared=shared) for one in found]
    if facts.count(facts[0]) != len(facts):
        raise ValueError(
            "replicas of the language model do not train or shard the same stages; freeze and wrap "
            "modules alike on all of them before the pipeline is made"
        )
    return facts[0]


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
