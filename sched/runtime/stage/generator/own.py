"""The generator of a pipeline as one rank has it: its module, parameters and fields."""

from dataclasses import dataclass

from torch import nn

from ....ir.program import Program
from ....transforms import has_generator
from ..taking import Taking, taking_for
from .spec import GeneratorSpec


@dataclass(frozen=True, slots=True)
class RankGenerator:
    """The generator, if there is one. `ranks`: those that run it, in the program's numbering."""

    spec: GeneratorSpec | None
    rank: int
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the generator's name, "" without one."""
        return "" if self.spec is None else self.spec.name

    def named_modules(self) -> dict[str, nn.Module]:
        """Return the module if this rank runs it, by its name in the whole model."""
        if self.spec is None or self.rank not in self.ranks or self.spec.module is None:
            return {}
        return {self.spec.called: self.spec.module}

    def saved_elsewhere(self) -> frozenset[str]:
        """Return the module's name if a rank before this one has a copy, and saves it."""
        return frozenset(self.named_modules() if self.rank != min(self.ranks, default=0) else ())

    def modules(self) -> list[nn.Module]:
        """Return the module if this rank runs it."""
        return list(self.named_modules().values())

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by names that are the same on all ranks."""
        return {
            f"{name}.{inside}": parameter
            for name, module in self.named_modules().items()
            for inside, parameter in module.named_parameters()
        }

    def fields(self, rank: int, last: int, *, generates: bool = True) -> set[str]:
        """Return the fields that a rank needs for it. `last`: the rank of the last stage.

        `generates`: False for a microbatch that another rank generates.
        """
        if self.spec is None:
            return set()
        own = set(self.spec.inputs) if generates and rank in self.ranks else set[str]()
        return own | (set(self.spec.marks) if rank == last else set())

    def taking(self, last: nn.Module | None) -> Taking | None:
        """Return how states are taken from the last stage's module, None on ranks without it."""
        return None if self.spec is None else taking_for(self.spec.take, self.spec.states, last)


def rank_generator(spec: GeneratorSpec | None, program: Program, rank: int) -> RankGenerator:
    """Return the generator of a rank. Raises ValueError for passes without a generator."""
    if spec is None and has_generator(program):
        raise ValueError(
            f"the schedule {program.name!r} has a generator's passes; give generator= the "
            "GeneratorSpec that they run"
        )
    ranks = (at for at, row in enumerate(program.ranks) if any(p.kind == "GF" for p in row))
    return RankGenerator(spec, rank, tuple(ranks))
