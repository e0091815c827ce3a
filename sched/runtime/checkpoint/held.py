"""The modules that one rank holds, under the names that its tensors have in the whole model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from ..vocabulary import Sharding, VocabularyShard


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A parameter, all its names in the whole model, and how its rows are divided, if they are."""

    parameter: nn.Parameter
    names: tuple[str, ...]
    sharding: Sharding | None = None


@dataclass(frozen=True, slots=True)
class HeldModules:
    """The modules of one rank.

    `stages`: by number; they name their tensors as the whole model does. `shard`: of the vocabulary
    layers. `layers`: of encoders, and a generator, by what stands before their tensors' names.
    `elsewhere`: those of them that another rank saves, which has a copy.
    """

    stages: Mapping[int, nn.Module] = field(default_factory=dict)
    shard: VocabularyShard | None = None
    layers: Mapping[str, nn.Module] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()

    def modules(self) -> Iterator[tuple[str, str, nn.Module]]:
        """Yield what each stage or layer is called, what its tensors' names begin with, and it."""
        for stage, module in self.stages.items():
            yield f"stage {stage}", "", module
        for name, module in self.layers.items():
            yield f"the layer {name}", f"{name}.", module

    def called(self) -> dict[str, nn.Parameter]:
        """Return the parameters by what errors call them."""
        found = {
            f"{name} of {what}": parameter
            for what, _, module in self.modules()
            for name, parameter in module.named_parameters()
        }
        rows = {} if self.shard is None else dict(self.shard.named_parameters())
        return found | {f"{name} of the vocabulary": p for name, p in rows.items()}

    def saved(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield what this rank saves: what the tensors' names begin with, and their module."""
        yield from (("", module) for module in self.stages.values())
        yield from ((f"{n}.", m) for n, m in self.layers.items() if n not in self.elsewhere)

    def named_parameters(self) -> dict[int, NamedParameter]:
        """Return the parameters by their `id`. A tied one has several names."""
        found: dict[int, NamedParameter] = {}
        for name, parameter, sharding in self._parameters():
            before = found.get(id(parameter))
            names = (*before.names, name) if before is not None else (name,)
            found[id(parameter)] = NamedParameter(parameter, tuple(dict.fromkeys(names)), sharding)
        return found

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter, Sharding | None]]:
        for _, start, module in self.modules():
            for name, parameter in module.named_parameters(remove_duplicate=False):
                yield start + name, parameter, None
        if self.shard is not None:
            yield from self.shard.named_rows()
