"""Agree on the model among all units, from the facts of each rank."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn

from ...ir.program import Program
from ..gradients.sharded import parameters_of_fsdp
from ..stage.agreement import ModelFacts, RankFacts, combine, ranks_with_shared
from ..vocabulary import VocabularyShard
from .layout import Units
from .place import UnitPlace


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
