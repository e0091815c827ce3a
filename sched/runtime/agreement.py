"""What the ranks of a pipeline tell each other once, at the start: stages, and what is trained."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from ..ir.program import Program
from .gradients.sharded import is_sharded


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank holds: each stage with whether it is trained and whether FSDP2 shards it.

    `embedding`: whether an input embedding that is divided over the ranks is trained.
    """

    trained: Mapping[int, bool]
    sharded: Mapping[int, bool]
    embedding: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What all ranks know.

    `input_gradient`: for each stage whether the gradient of its input is wanted, and at the end,
    whether that of the last stage's output is. `sharded`: the stages that FSDP2 shards.
    """

    input_gradient: tuple[bool, ...]
    sharded: tuple[int, ...]


def is_trained(modules: Iterable[nn.Module]) -> bool:
    """Return whether any parameter requires a gradient."""
    return any(p.requires_grad for module in modules for p in module.parameters())


def facts_of(stages: Mapping[int, nn.Module], embedding: nn.Module | None = None) -> RankFacts:
    """Return what a rank tells the others of its stages."""
    return RankFacts(
        {stage: is_trained([module]) for stage, module in stages.items()},
        {stage: is_sharded(module) for stage, module in stages.items()},
        embedding is not None and is_trained([embedding]),
    )


def agree(own: RankFacts, program: Program, group: dist.ProcessGroup | None) -> ModelFacts:
    """Return the facts of the whole model, the same on every rank; all ranks call this.

    `group`: the pipeline's ranks, None if there is one. Raises ValueError on every rank if any has
    other stages than the program places on it.
    """
    everyone: list[RankFacts] = [own]
    if group is not None and group.size() > 1:
        found: list[RankFacts | None] = [None] * group.size()
        dist.all_gather_object(found, own, group=group)
        everyone = [facts for facts in found if facts is not None]
    return combine(everyone, program)


def combine(everyone: Sequence[RankFacts], program: Program) -> ModelFacts:
    """Return what follows from the facts of all ranks. Raises ValueError as `agree` does."""
    if len(everyone) != len(program.ranks):
        raise ValueError(
            f"the program has {len(program.ranks)} ranks, the mesh {len(everyone)} in its pp "
            "dimension; make the schedule for as many ranks"
        )
    for rank, facts in enumerate(everyone):
        wanted = program.stages_of(rank)
        if tuple(sorted(facts.trained)) != wanted:
            raise ValueError(
                f"rank {rank} has stages {sorted(facts.trained)}, the schedule places "
                f"{list(wanted)} on it; give each rank a module for each of its stages"
            )
    trained = {stage: yes for facts in everyone for stage, yes in facts.trained.items()}
    embedding = any(facts.embedding for facts in everyone)
    flows = [embedding]
    for stage in range(program.stages):
        flows.append(flows[-1] or trained[stage])
    sharded = sorted(s for facts in everyone for s, yes in facts.sharded.items() if yes)
    return ModelFacts(tuple(flows), tuple(sharded))
