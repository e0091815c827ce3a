"""Modules to lay out: a model's parts from shapes, or a JSON file of measured times."""

from dataclasses import dataclass

from ...ir.typed_json import read_json
from ...shapes import (
    ENCODER,
    GENERATOR,
    LANGUAGE,
    Amounts,
    Device,
    Model,
    ParallelLayout,
    SubModel,
    layer_costs,
)
from .units import BACKBONE, TENSOR_SIZES, Module


def make_modules(
    model: Model, device: Device, amounts: Amounts, recompute: bool = False
) -> tuple[Module, ...]:
    """Return the modules of a model for one sample of these amounts; encoders are one module.

    A frozen encoder has no backward at all; other frozen parts still pass gradients on to the
    projectors. `recompute`: every layer.

    >>> from ...shapes import read_model
    >>> model = read_model("mllm-9b")
    >>> [module.name for module in make_modules(model, Device(), model.amounts())]
    ['encoder', 'backbone', 'generator']
    """
    names = {ENCODER: ENCODER, LANGUAGE: BACKBONE, GENERATOR: GENERATOR}
    by_tp = {tp: layer_costs(model, device, ParallelLayout(tp=tp), amounts) for tp in TENSOR_SIZES}
    layout = ParallelLayout(dp=1)
    modules = []
    for kind in dict.fromkeys(part.kind for part in model.parts):
        rows = {tp: [layer for layer in row if layer.kind == kind] for tp, row in by_tp.items()}
        layers, units = rows[1], [part for part in model.parts if part.kind == kind]
        trained = sum(layer.trained for layer in layers)
        weights = layout.weight_bytes * sum(layer.parameters for layer in layers)
        activations = sum(layer.activation_bytes + layer.logits_bytes for layer in layers)
        if recompute:
            again = [layer.activation_bytes - layer.input_bytes for layer in layers]
            activations += max(again) - sum(again)
        modules.append(
            Module(
                names[kind],
                len(layers),
                {tp: sum(layer.forward_ns for layer in row) for tp, row in rows.items()},
                {
                    # What has no backward recomputes nothing.
                    tp: sum(
                        layer.backward_ns and layer.backward_ns + recompute * layer.recompute_ns
                        for layer in row
                    )
                    for tp, row in rows.items()
                },
                state_bytes=weights + layout.gradient_bytes * trained,
                optimizer_bytes=layout.optimizer_bytes * trained,
                activation_bytes=activations,
                output_bytes=layers[0].output_bytes,
                parts=1 if kind == LANGUAGE else max(1, amounts.get(units[0].unit, 1)),
                flops=sum(_flops(part, amounts) for part in units),
            )
        )
    return tuple(modules)


def _flops(part: SubModel, amounts: Amounts) -> int:
    """Return the operations of a part's forward and backward; a frozen one makes no weights'."""
    backward = 2 if not part.frozen else 0 if part.kind == ENCODER else 1
    return part.forward_flops(amounts) * (1 + backward)


@dataclass(frozen=True, slots=True)
class _ModuleList:
    modules: tuple[Module, ...]


def read_modules(text: str) -> tuple[Module, ...]:
    """Return modules from JSON: {"modules": [{"name": ..., "forward_ns": {"1": 5}, ...}]}.

    The keys are the fields of `Module`, times by TP size. Raises ValueError, in one line that names
    the field and its value, for anything else.
    """
    return read_json(text, _ModuleList, "the model").modules
