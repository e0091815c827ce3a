"""Measures whether a Trainer divides the sum of losses by the items of the whole step.

What a class says of itself (`model_accepts_loss_kwargs`, a compute_loss_func) does not tell what
its compute_loss does: class weights, distillation and label smoothing often end in a mean over the
microbatch. A sum divided by twice the items is half of it, and a mean is not.
"""

import copy
from typing import Any

import torch

# Losses in bfloat16 are rounded, and a router's loss (MoE) is added undivided.
CLOSE = 0.05


def measure_loss(trainer: Any) -> None:
    """Let a trainer measure its loss at the first microbatch that has one, and train on.

    compute_loss is called twice more for that microbatch: without gradients, in evaluation mode,
    with random states put back. Raises ValueError there where twice the items do not halve it.
    """
    compute = trainer.compute_loss

    def compute_measured(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        items = named.get("num_items_in_batch")
        if items is not None and model.training:
            once, twice = (
                _loss_of(compute, model, inputs, {**named, "num_items_in_batch": times * items})
                for times in (1, 2)
            )
            if once:
                trainer.compute_loss = compute
            if abs(once - 2 * twice) > CLOSE * abs(once):
                raise ValueError(
                    f"compute_loss of {type(trainer).__name__} does not divide by "
                    f"num_items_in_batch (twice the items make {twice:.6g} of {once:.6g}, not "
                    "half of it), and microbatches of a step differ in tokens: divide the sum "
                    'of losses by it, or give Balance(..., counts="equal") to the loader'
                )
        return compute(model, inputs, *more, **named)

    trainer.compute_loss = compute_measured


def _loss_of(compute: Any, model: Any, inputs: Any, named: dict[str, Any]) -> float:
    """Return a loss without a trace of its computation; the model is in training mode again."""
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            loss = compute(model, copy.copy(inputs), **named)
    finally:
        model.train()
    return float(loss[0] if isinstance(loss, tuple) else loss)
