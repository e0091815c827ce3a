"""The facts that a pipeline's ranks exchange, once at the start: stages, and what is trained."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from ...ir.kinds import BACKWARD
from ...ir.program import Program
from ..gradients import is_sharded, likeness


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The stages of one rank: each with whether it is trained and whether FSDP2 shards it.

    `embedding`: whether an input embedding that is divided over the ranks is trained. `encoders`:
    by name, which of the layers that the rank runs are. `shared`: what the parameters are like that
    other ranks have too. `copies`: the same for encoders' parameters, of which other ranks may have
    copies. `names`: of the stages' other ones. `generator`: what it is called, if there is one.
    `images`: of those that travel, whether their encoder is trained, None without any.
    """

    trained: Mapping[int, bool]
    sharded: Mapping[int, bool]
    embedding: bool = False
    encoders: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    generator: str = ""
    images: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts that all ranks know.

    `input_gradient`: for each stage whether the gradient of its input is wanted, and at the end,
    whether that of the last stage's output is. `sharded`: the stages that FSDP2 shards. `lowest`:
    of each encoder the lowest layer that is trained, None if it is frozen. `shared`: the ranks that
    have each shared parameter, encoders' included. `unclear`: names of parameters that mean
    different ones on different ranks, which no checkpoint can hold.
    """

    input_gradient: tuple[bool, ...]
    sharded: tuple[int, ...]
    lowest: tuple[int | None, ...] = ()
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unclear: tuple[str, ...] = ()


def is_trained(modules: Iterable[nn.Module]) -> bool:
    """Return whether any parameter requires a gradient."""
    return any(p.requires_grad for module in modules for p in module.parameters())


def collect_facts(
    stages: Mapping[int, nn.Module],
    embedding: nn.Module | None,
    shared: Mapping[str, nn.Parameter],
    encoders: Mapping[str, Mapping[int, bool]],
    copies: Mapping[str, nn.Parameter],
    generator: str,
    images: bool | None = None,
) -> RankFacts:
    """Return what a rank tells the others. `copies`: of parameters of encoders and replicas.

    Raises ValueError for a shared parameter that is in none of its stages, or in a sharded one.
    """
    in_stages = {id(p) for module in stages.values() for p in module.parameters()}
    divided = {id(p) for m in stages.values() if is_sharded(m) for p in m.parameters()}
    for name, parameter in shared.items():
        if id(parameter) not in in_stages or id(parameter) in divided:
            where = "in a stage that FSDP2 shards" if id(parameter) in in_stages else "in no stage"
            raise ValueError(
                f"the shared parameter {name!r} is {where} of this rank; share parameters of "
                "stages that are not sharded"
            )
    # A shared parameter has another name in each stage, and is no stage's own.
    several = {id(p) for p in shared.values()}
    return RankFacts(
        {stage: is_trained([module]) for stage, module in stages.items()},
        {stage: is_sharded(module) for stage, module in stages.items()},
        embedding is not None and is_trained([embedding]),
        encoders,
        {name: likeness(p) for name, p in shared.items()},
        {name: likeness(p) for name, p in copies.items()},
        frozenset(
            name
            for module in stages.values()
            for name, p in module.named_parameters()
            if id(p) not in several
        ),
        generator,
        images,
    )


def combine(facts_by_rank: Sequence[RankFacts], program: Program) -> ModelFacts:
    """Return what follows from the facts of all ranks. Raises ValueError as `agree` does."""
    if len(facts_by_rank) != len(program.ranks):
        raise ValueError(
            f"the program has {len(program.ranks)} ranks, the mesh {len(facts_by_rank)} in its pp "
            "dimension; make the schedule for as many ranks"
        )
    # All ranks have the same facts and find the same fault, so none is left waiting for the others.
    for rank, facts in enumerate(facts_by_rank):
        placed = program.stages_of(rank)
        if tuple(sorted(facts.trained)) != placed:
            raise ValueError(
                f"rank {rank} has stages {sorted(facts.trained)}, the schedule places "
                f"{list(placed)} on it; give each rank a module for each of its stages"
            )
        first = facts_by_rank[0]
        if facts.generator != first.generator:
            raise ValueError(
                f"rank {rank} has the generator {facts.generator!r}, rank 0 {first.generator!r}; "
                "give every rank the same generator="
            )
        if facts.images != first.images:
            raise ValueError(
                f"rank {rank} and rank 0 differ in images that travel, or in whether their encoder "
                "is trained; give every rank the same TravellingImages, frozen on all or none"
            )
        if [*facts.encoders] != [*first.encoders]:
            raise ValueError(
                f"rank {rank} has the encoders {[*facts.encoders]}, rank 0 {[*first.encoders]}; "
                "give every rank the same in one order"
            )
    sharded = sorted(s for facts in facts_by_rank for s, yes in facts.sharded.items() if yes)
    layers = (
        [n for facts in facts_by_rank for n, yes in facts.encoders[name].items() if yes]
        for name in facts_by_rank[0].encoders
    )
    lowest = tuple(min(numbers, default=None) for numbers in layers)
    counts = Counter(name for facts in facts_by_rank for name in facts.names)
    copies = {name for facts in facts_by_rank for name in facts.copies}
    unclear = tuple(sorted(n for n, count in counts.items() if count > 1 or n in copies))
    flows = tuple(_flows(facts_by_rank, program, any(number is not None for number in lowest)))
    return ModelFacts(flows, tuple(sharded), lowest, ranks_with_shared(facts_by_rank), unclear)


def ranks_with_shared(facts_by_rank: Sequence[RankFacts]) -> dict[str, tuple[int, ...]]:
    """Return the ranks with each shared parameter or copy. Raises ValueError for unlike ones."""
    ranks_by_name: dict[str, tuple[int, ...]] = {}
    descriptions = [{**facts.copies, **facts.shared} for facts in facts_by_rank]
    for name in sorted({name for row in descriptions for name in row}):
        ranks = tuple(rank for rank, row in enumerate(descriptions) if name in row)
        alike = {descriptions[rank][name]: rank for rank in ranks}
        if len(alike) > 1:
            which = ", ".join(f"{text} on rank {rank}" for text, rank in alike.items())
            raise ValueError(
                f"the shared parameter {name!r} is {which}; ranks share parameters of one shape "
                "and precision, all trained or all frozen"
            )
        if len(ranks) < 2 and name in facts_by_rank[ranks[0]].copies:
            continue  # the only encoder pipeline
        if len(ranks) < 2:
            raise ValueError(
                f"only rank {ranks[0]} gives the shared parameter {name!r}; every rank that has a "
                "copy gives it by the same name"
            )
        ranks_by_name[name] = ranks
    return ranks_by_name


def _flows(facts_by_rank: Sequence[RankFacts], program: Program, encoded: bool) -> Iterator[bool]:
    """Yield for each stage whether anything before it is trained, and at the end for its output.

    `encoded`: whether any encoder is trained; then every F that gets features returns gradients.
    """
    trained = {stage: yes for facts in facts_by_rank for stage, yes in facts.trained.items()}
    # Stages whose features' gradients an edge takes back to an encoder.
    back = {e.source.stage for e in program.edges if encoded and e.source.kind in BACKWARD}
    if any(facts.images for facts in facts_by_rank):
        back.add(0)
    yield (flows := any(facts.embedding for facts in facts_by_rank))
    for stage in range(program.stages):
        flows = flows or trained[stage] or stage in back
        yield flows
