"""A generator as a part of the model that the executor runs.

GF makes the microbatch's loss of the states that an edge brings from the last stage, which come
detached; GB runs back from it, and the gradient of the states goes to the last stage's backward
along another edge. A microbatch with nothing to generate calls no module: no states travel, and the
gradient that the last stage waits for is empty.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ....ir.passes import Pass
from ....ir.program import Program
from ...compiled.ops import Value
from ...parts.interface import Given, Made
from ...parts.step_data import StepData, TensorSpec
from ..calling import Calling, call_module
from .spec import GeneratorSpec


class _Kept(NamedTuple):
    """The states, if their gradient is wanted, and where the loss' gradient enters the graph."""

    states: Tensor | None
    edge: GradientEdge | None


@dataclass(eq=False, slots=True)
class GeneratorPart:
    """Runs a generator's passes on one rank. `calling`: as for stages."""

    program: Program
    rank: int
    generator: GeneratorSpec
    calling: Calling = field(default_factory=Calling)
    kinds: frozenset[str] = frozenset()
    _data: StepData = field(default_factory=lambda: StepData((), ()))
    _losses: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find out whether this rank runs the generator. Raises ValueError without its module."""
        if any(item.kind == "GF" for item in self.program.ranks[self.rank]):
            self.kinds = frozenset(("GF", "GB"))
            if self.generator.module is None:
                raise ValueError(
                    f"the generator {self.generator.name!r} runs on this rank; give its module, "
                    "not None"
                )

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the sizes of states and their gradients in a step.

        `infos`: of the microbatches, None for those of which nothing comes here.
        """
        found = {}
        for item in (p for row in self.program.ranks for p in row if p.kind == "GF"):
            if (info := infos[item.microbatch]) is not None:
                spec = self.generator.states_spec(info)
                found[_states(self.program, item)] = spec
                found[Value("X_GB", item.stage, item.microbatch)] = spec
        return found

    def weights(self, infos: Sequence[Any]) -> dict[int, float]:
        """Return what the loss of each microbatch that this rank generates counts.

        `infos`: as for edge_specs. Replicas on units share a program, not its microbatches.
        """
        own = (p.microbatch for p in self.program.ranks[self.rank] if p.kind == "GF")
        return {n: self.generator.weight(infos[n]) for n in own if infos[n] is not None}

    def begin(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data, self._losses = data, []

    def run(self, what: Pass, given: Given) -> Made:
        """Run one GF or GB."""
        if what.kind == "GF":
            return {"generator": self._forward(what, given)}
        kept: _Kept = given["generator"]
        if kept.edge is not None:
            torch.autograd.backward([kept.edge])
        if kept.states is None:
            return {}
        gradient = kept.states.grad
        return {"X_GB": torch.zeros_like(kept.states) if gradient is None else gradient}

    def finish(self) -> Tensor | None:
        """Return the sum of the weighted losses, None on ranks that generate nothing."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    def modules(self) -> Iterable[nn.Module]:
        """Return the generator's module, on the ranks that run it."""
        module = self.generator.module
        return (module,) if self.kinds and module is not None else ()

    def _forward(self, what: Pass, given: Given) -> _Kept:
        wanted, module = self._data.input_gradient[-1], self.generator.module
        states = given[_states(self.program, what).name][0]
        states = states.detach().requires_grad_(wanted)
        if 0 in states.shape or module is None:
            return _Kept(states if wanted else None, None)
        fields = self._data.microbatches[what.microbatch].fields
        inputs = [states, *(fields[name] for name in self.generator.inputs)]
        with torch.set_grad_enabled(self._data.training):
            loss = call_module(module, inputs, {}, self.calling, what)
            if loss.dim():
                raise ValueError(
                    f"the generator {self.generator.name!r} returned a loss of shape "
                    f"{tuple(loss.shape)}; return the sum over what it generates"
                )
            loss = loss * self._data.generated[what.microbatch]
        self._losses.append(loss.detach())
        edge = get_gradient_edge(loss) if loss.requires_grad else None
        return _Kept(states if wanted else None, edge)


def _states(program: Program, item: Pass) -> Value:
    """Return the value that brings a generator's pass its states: the last stage's."""
    return Value("X_F", program.stages - 1, item.microbatch)
