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


def modules_of(
    model: Model,
    device: Device,
    amounts: Amounts,
    recompute: bool = False,
) -> tuple[Module, ...]:
    """Return the modules of a model for one sample of these amounts; encoders are one module.

    A frozen encoder has no backward at all; other frozen parts still pass gradients on to the
    projectors. `recompute`: every layer.

    >>> from ...shapes import read_model
    >>> model = read_model("mllm-9b")
    >>> [module.name for module in modules_of(model, Device(), model.amounts())]
    ['encoder', 'backbone', 'generator']
    """
    names = {ENCODER: ENCODER, LANGUAGE: BACKBONE, GENERATOR: GENERATOR}
    by_tp = {tp: layer_costs(model, device, ParallelLayout(tp=tp), amounts) for tp in TENSOR_SIZES}
    layout = ParallelLayout(dp=1)
    found = []
    for kind in dict.fromkeys(part.kind for part in model.parts):
        rows = {tp: [one for one in row if one.kind == kind] for tp, row in by_tp.items()}
        own, units = rows[1], [part for part in model.parts if part.kind == kind]
        trained = sum(one.trained for one in own)
        weights = layout.weight_bytes * sum(one.parameters for one in own)
        kept = [one.input_bytes if recompute else one.activation_bytes for one in own]
        working = max(one.activation_bytes - one.input_bytes for one in own) if recompute else 0
        found.append(
            Module(
                names[kind],
                len(own),
                {tp: sum(one.forward_ns for one in row) for tp, row in rows.items()},
                {
                    # What has no backward recomputes nothing.
                    tp: sum(
                        one.backward_ns and one.backward_ns + recompute * one.recompute_ns
                        for one in row
                    )
                    for tp, row in rows.items()
                },
                state_bytes=weights + layout.gradient_bytes * trained,
                optimizer_bytes=layout.optimizer_bytes * trained,
                activation_bytes=sum(kept) + sum(one.logits_bytes for one in own) + working,
                output_bytes=own[0].output_bytes,
                parts=1 if kind == LANGUAGE else max(1, amounts.get(units[0].unit, 1)),
                flops=sum(_flops(part, amounts) for part in units),
            )
        )
    return tuple(found)


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
