"""The encoders of a pipeline as one rank has them: their layers, parameters and fields."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from ...ir.passes import Pass
from ...ir.program import Program
from ..compiled import without_encoder_backward
from .part import layer_of
from .placement import EncoderPlacement, place_encoders
from .spec import EncoderSpec


@dataclass(frozen=True, slots=True)
class RankEncoders:
    """All encoders, and which of their layers this rank runs; empty for models without any."""

    specs: tuple[EncoderSpec, ...]
    rank: int
    placement: EncoderPlacement = field(default_factory=EncoderPlacement)

    def layers(self) -> Iterator[tuple[EncoderSpec, int, nn.Module]]:
        """Yield encoder, number and module of each layer that this rank runs."""
        for encoder, spec in enumerate(self.specs):
            for number in self.placement.on_rank(self.rank, encoder):
                yield spec, number, layer_of(spec, number)

    def named_modules(self) -> dict[str, nn.Module]:
        """Return the layers that this rank runs, by names that are the same on all ranks."""
        return {spec.layer_name(number): module for spec, number, module in self.layers()}

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the names of layers of which a rank before this one has a copy, and saves it."""
        own = self.placement.position.get(self.rank)
        before = [at for rank, at in self.placement.position.items() if rank < self.rank]
        return frozenset(self.named_modules() if own in before else ())

    def modules(self) -> list[nn.Module]:
        """Return the layers that this rank runs."""
        return [module for _, _, module in self.layers()]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by names that are the same on all ranks."""
        return {
            f"{name}.{inside}": parameter
            for name, module in self.named_modules().items()
            for inside, parameter in module.named_parameters()
        }

    def trained(self) -> dict[str, dict[int, bool]]:
        """Return for each encoder which of the layers that this rank runs are trained."""
        found: dict[str, dict[int, bool]] = {spec.name: {} for spec in self.specs}
        for spec, number, module in self.layers():
            found[spec.name][number] = any(p.requires_grad for p in module.parameters())
        return found

    def fields(self, rank: int) -> set[str]:
        """Return the fields that a rank needs: those on which encoders begin, their inputs."""
        if self.placement.position.get(rank) != 0:
            return set()
        return {name for spec in self.specs for name in spec.inputs}

    def placed(self, program: Program) -> EncoderPlacement:
        """Return the placement for another program. Raises ValueError if layers are elsewhere."""
        found = place_encoders(program, [len(spec.modules) for spec in self.specs])
        # A program with few microbatches may leave out whole encoder pipelines.
        known = self.placement
        if found.width != known.width or not found.position.items() <= known.position.items():
            raise ValueError(
                f"with {program.microbatches} microbatches the schedule {program.name!r} puts "
                "encoder layers on other ranks than when the pipeline was made; make the pipeline "
                "with a schedule that always puts them on the same ones"
            )
        return known


def rank_encoders(specs: Sequence[EncoderSpec], program: Program, rank: int) -> RankEncoders:
    """Return the encoders of a rank. Raises ValueError for two of one name, and as placing does."""
    counts = Counter(spec.name for spec in specs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"two encoders are called {twice[0]!r}; give each a name of its own")
    placement = place_encoders(program, [len(spec.modules) for spec in specs])
    return RankEncoders(tuple(specs), rank, placement)


def trained_program(
    program: Program, placement: EncoderPlacement, lowest: Sequence[int | None]
) -> Program:
    """Return the program without the backward that no gradient needs.

    `lowest`: of each encoder the lowest layer that is trained on any rank, None if it is frozen.
    """

    def unwanted(item: Pass) -> bool:
        place = placement.layer(item)
        first = lowest[place.encoder]
        return first is None or place.number < first

    return without_encoder_backward(program, unwanted)
