"""The encoder layers of a rank as a part of the model that the executor runs.

EF keeps its input, if a layer below waits for its gradient, and the edge of its graph; EB starts
there. A layer without an EB in the program makes no graph. Features reach the language model
detached, so that a stage's backward ends at them; their gradient comes back along an edge.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...ir.passes import Pass
from ...ir.program import Program
from ..compiled.ops import Value
from ..parts.interface import Given, Made
from ..parts.step_data import StepData, TensorSpec
from ..stage.calling import Calling, call_module
from .layers import EncoderLayers
from .routes import EncoderRoutes, find_routes, layer_number


@dataclass(frozen=True, slots=True)
class _Kept:
    """The input of EB, if its gradient is wanted, and where the output's gradient enters."""

    input: Tensor | None
    edge: GradientEdge | None


@dataclass(eq=False, slots=True)
class EncoderPart:
    """Runs the encoder passes of one rank.

    `program`: says which they are, and what they take. `calling`: as for stages. Raises ValueError
    if a layer is missing, or trained without a backward.
    """

    program: Program
    rank: int
    encoder: EncoderLayers
    calling: Calling = field(default_factory=Calling)
    kinds: frozenset[str] = frozenset()
    routes: EncoderRoutes = field(init=False)
    _data: StepData = field(default_factory=lambda: StepData((), ()))

    def __post_init__(self) -> None:
        """Find out what the passes work on, and compare them with the layers."""
        self.routes = find_routes(self.program)
        own = [item for item in self.program.ranks[self.rank] if item.kind[:2] in ("EF", "EB")]
        self.kinds = frozenset(item.kind for item in own)
        _compare(self.rank, self.kinds, self.encoder.layers)

    def edge_specs(self, infos: Sequence[Any]) -> dict[Value, TensorSpec]:
        """Return the sizes of what edges carry in a step of microbatches with these infos."""
        return self.routes.specs(self.encoder, infos)

    def begin(self, data: StepData) -> None:
        """Take the step's microbatches."""
        self._data = data

    def run(self, what: Pass, given: Given) -> Made:
        """Run one layer's EF or EB."""
        if what.kind.startswith("EF"):
            return self._forward(what, given)
        return self._backward(what, given)

    def finish(self) -> Tensor | None:
        """Return None: encoders have no loss."""
        return None

    def modules(self) -> Iterable[nn.Module]:
        """Return this rank's layers."""
        return self.encoder.layers.values()

    def _forward(self, what: Pass, given: Given) -> Made:
        microbatch = self._data.microbatches[self.routes.number[what.microbatch]]
        back = Pass(what.stage, f"EB{what.kind[2:]}", what.microbatch)
        x = None
        if what in self.routes.entries:
            inputs = [microbatch.fields[name] for name in self.encoder.inputs]
        else:
            (x,) = _results(given, "EF")
            x = x.detach().requires_grad_(back in self.routes.wanted)
            inputs = [x]
        module = self.encoder.layers[layer_number(what.kind)]
        with torch.set_grad_enabled(back in self.routes.backward):
            output = call_module(module, inputs, {}, self.calling, what)
        _check_size(what, output, self._data)
        edge = get_gradient_edge(output) if output.requires_grad else None
        kept = _Kept(x if back in self.routes.wanted else None, edge)
        result = output.detach()
        return {what.kind: result, f"X_{what.kind}": result, f"encoder{what.kind[2:]}": kept}

    def _backward(self, what: Pass, given: Given) -> Made:
        kept: _Kept = given[f"encoder{what.kind[2:]}"]
        gradients = _results(given, "EB")
        if not gradients:
            raise RuntimeError(f"{what} has no gradient of its output; check the program's edges")
        if kept.edge is not None:
            # What went to several stages or layers gets a gradient from each.
            gradient = gradients[0] if len(gradients) == 1 else torch.stack(gradients).sum(0)
            torch.autograd.backward([kept.edge], [gradient])
        if kept.input is None:
            return {}
        found = kept.input.grad
        found = torch.zeros_like(kept.input) if found is None else found
        return {what.kind: found, f"X_{what.kind}": found}


def _results(given: Given, start: str) -> list[Tensor]:
    """Return the results of the layer beside this one, and those that edges bring."""
    found: list[Tensor] = []
    for name, value in given.items():
        if name.startswith("X_"):
            found += value
        elif name.startswith(start):
            found.append(value)
    return found


def _compare(rank: int, kinds: frozenset[str], layers: Mapping[int, nn.Module]) -> None:
    """Raise ValueError if a layer is missing, or is trained and has no backward."""
    wanted = {layer_number(kind) for kind in kinds}
    if set(layers) != wanted:
        raise ValueError(
            f"rank {rank} has the encoder layers {sorted(layers)}, the schedule runs "
            f"{sorted(wanted)} there; give a module for each"
        )
    back = {layer_number(kind) for kind in kinds if kind.startswith("EB")}
    for number in sorted(wanted - back):
        if any(p.requires_grad for p in layers[number].parameters()):
            raise ValueError(
                f"encoder layer {number} of rank {rank} is trained, but the schedule has no "
                "backward of it; freeze it, or fill a schedule with that layer trained"
            )


def _check_size(what: Pass, output: Tensor, data: StepData) -> None:
    """Raise ValueError if what edges carry has not the size that other ranks were promised."""
    spec = data.edges.get(Value(f"X_{what.kind}", what.stage, what.microbatch))
    if spec is not None and (tuple(output.shape), output.dtype) != (spec.shape, spec.dtype):
        raise ValueError(
            f"{what} made {tuple(output.shape)} {output.dtype}, the plan says {spec.shape} "
            f"{spec.dtype}; give EncoderLayers the true shapes and precision"
        )
