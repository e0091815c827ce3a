"""Recomputation costs from model shapes: steps 1 to 3 of recompute.py without a GPU.

A kept layer holds `activation_bytes`; a recomputed one only its input, the output of the layer
before it. A stage holds its parameters' states (bf16 and fp32 parameters and gradients, Adam's
cut over the replicas: ZeRO-1), the activations of its live microbatches, and, while it recomputes
a layer, that layer's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..ir.registry import schedule
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from .recompute import Policy, Saving, Stage, recomputed_ns
from .stage_split import LayerCost, Sizes

_STATE_BYTES, _OPTIMIZER_BYTES = 6, 12


@dataclass(frozen=True, slots=True)
class Modelled:
    """Stages and savings, as `plan_recompute` takes them."""

    stages: tuple[Stage, ...]
    saving: dict[str, Saving]


def modelled_stages(
    layers: Sequence[LayerCost], sizes: Sizes, *, microbatches: int, tp: int = 1, dp: int = 1
) -> Modelled:
    """Return the memory of 1F1B stages of these layers, per GPU; equal layers are one kind.

    Raises ValueError if the sizes do not add up to the layers.
    """
    if sum(sizes) != len(layers) or min(sizes) < 1:
        raise ValueError(f"stages of {list(sizes)} layers, but the model has {len(layers)}")
    kinds, inputs = _kinds(layers), _inputs(layers)
    saving = {
        kind: Saving(max(0, layer.activation_bytes - handed), layer.forward_ns)
        for kind, layer, handed in zip(kinds, layers, inputs, strict=True)
    }
    stages = []
    for at, (start, end) in enumerate(pairwise([0, *accumulate(sizes)])):
        live = min(microbatches, len(sizes) - at)
        parameters = sum(layer.parameters for layer in layers[start:end])
        states = (_STATE_BYTES * dp + _OPTIMIZER_BYTES) * parameters // (tp * dp)
        working = max(saving[kind].saved_bytes for kind in kinds[start:end])
        base = states + live * sum(inputs[start:end]) + working
        stages.append(Stage(tuple(kinds[start:end]), live, base, working))
    return Modelled(tuple(stages), saving)


def recomputing_step_ns(
    layers: Sequence[LayerCost], sizes: Sizes, model: Modelled, policies: Sequence[Policy], n: int
) -> int:
    """Return the simulated 1F1B step of n microbatches with recomputation in the backwards."""
    ends = list(pairwise([0, *accumulate(sizes)]))
    forward = [sum(layer.forward_ns for layer in layers[a:b]) for a, b in ends]
    backward = [
        sum(layer.backward_ns for layer in layers[a:b]) + recomputed_ns(stage, model.saving, policy)
        for (a, b), stage, policy in zip(ends, model.stages, policies, strict=True)
    ]
    program = schedule("1f1b", ranks=len(sizes), microbatches=n)
    return simulate(program, Costs({"F": forward, "B": backward})).makespan_ns


def _inputs(layers: Sequence[LayerCost]) -> list[int]:
    """Return each layer's input bytes; the first layer's are taken to equal its output."""
    return [layers[0].output_bytes, *(layer.output_bytes for layer in layers[:-1])]


def _kinds(layers: Sequence[LayerCost]) -> list[str]:
    """Return a name for each layer: its kind, and a number where layers of a kind differ."""
    seen: dict[str, list[tuple[int, int, int]]] = {}
    names = []
    for layer, handed in zip(layers, _inputs(layers), strict=True):
        form = (layer.activation_bytes, handed, layer.forward_ns)
        forms = seen.setdefault(layer.kind, [])
        if form not in forms:
            forms.append(form)
        at = forms.index(form)
        names.append(f"{layer.kind} {at + 1}" if at else layer.kind)
    return names
