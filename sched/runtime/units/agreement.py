"""Agree on the model among all units, from the facts of each rank."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import nn

from ...ir.program import Program
from ..gradients.sharded import parameters_of_fsdp
from ..links import gather_objects
from ..stage.agreement import ModelFacts, RankFacts, combine, ranks_with_shared
from ..vocabulary import VocabularyShard
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

    `program`: of one replica. Raises ValueError and PeerLostError as `agree` does.
    """
    units = place.units
    everyone = gather_objects(own, place.group, place.device, deadline_s)
    found = [
        combine([everyone[units.rank(replica, seat)] for seat in range(units.seats)], program)
        for replica in range(units.backbone.dp)
    ]
    shared = ranks_with_shared(everyone)
    facts = [replace(one, shared=shared) for one in found]
    if facts.count(facts[0]) != len(facts):
        raise ValueError(
            "replicas of the language model do not train or shard the same stages; freeze and wrap "
            "modules alike on all of them before the pipeline is made"
        )
    return facts[0]
