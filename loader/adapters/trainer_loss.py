"""Finds out whether a Trainer divides its loss by the label tokens of the whole step.

What a class says of itself (`model_accepts_loss_kwargs`, a compute_loss_func) does not tell what
its compute_loss does: class weights, distillation and label smoothing often end in a mean over the
microbatch. A sum divided by twice the items is half of it, and a mean is not.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...workers.sources.randomness import global_randomness

# Losses in bfloat16 are rounded, and a router's loss (MoE) is added undivided.
CLOSE = 0.05
ITEMS = "num_items_in_batch"
UNEVEN = (
    "microbatches have samples of like lengths and equal counts, so that tokens of short samples "
    "weigh more: "
)


@dataclass(frozen=True, slots=True)
class LossScale:
    """How a trainer's losses are divided.

    undivided: why not by the step's label tokens; "" if they are. warning: what equal counts then
    do to the loss; "" where it is a mean over samples. is_measured: False where it is only said.
    """

    undivided: str
    warning: str = ""
    is_measured: bool = False


def explain_unnormalised(trainer: Any) -> str:
    """Return why losses are not divided by the label tokens of all microbatches; "" if they are."""
    if not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None):
        return (
            f"the loss of {type(trainer.model).__name__} is a mean over one microbatch, and those "
            "of a step differ in tokens: let its forward take **kwargs with num_items_in_batch and "
            "divide the sum of losses by it, or give Trainer(compute_loss_func=...), which gets it"
        )
    if not trainer.args.average_tokens_across_devices and trainer.args.world_size > 1:
        return (
            "average_tokens_across_devices=False divides by the tokens of one rank, and ranks "
            "differ: leave it True in TrainingArguments"
        )
    return ""


def find_loss(trainer: Any, loader: Any) -> LossScale:
    """Return how a trainer divides its losses, measured on the first two samples of a loader.

    Under FSDP, DeepSpeed and meshes, whose models compute nothing before they are prepared, it is
    what the trainer says. Every rank has to call it: Trainer counts the label tokens of all.
    """
    said = explain_unnormalised(trainer)
    with global_randomness(0, 0, "loss"):
        data: Any = loader.dataset
        samples = [copy.deepcopy(data[k]) for k in range(min(2, len(data)))]
        count, batch = len(samples), loader.collate_fn(samples)
    if not isinstance(batch, Mapping) or "labels" not in batch:
        return LossScale(said or "batches have no labels: nothing counts their tokens")
    if len(batch["labels"]) != count:  # pairs of a preference, which are compared
        return LossScale(said or "a sample is several rows of a batch: its loss is one of samples")
    is_whole = not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
    if not is_whole or getattr(trainer.accelerator, "torch_device_mesh", None) is not None:
        return LossScale(said, said and UNEVEN + said)
    if not said:
        shares = _measure_share(trainer, batch)
        return LossScale(shares or "", UNEVEN + shares if shares else "", shares is not None)
    # which setting makes it so
    accepts, trainer.model_accepts_loss_kwargs = trainer.model_accepts_loss_kwargs, True
    try:
        would_divide = _measure_share(trainer, batch) == ""
    finally:
        trainer.model_accepts_loss_kwargs = accepts
    if would_divide:
        settings = ["trainer.model_accepts_loss_kwargs = True"] * (not accepts)
        if trainer.args.world_size > 1 and not trainer.args.average_tokens_across_devices:
            settings.append("trainer.args.average_tokens_across_devices = True")
        said = (
            f"the loss of {type(trainer).__name__} is not divided by the label tokens of the whole "
            f"step; as measured, {' and '.join(settings)} before attach_trainer() does it (without "
            "balance, too, that is another loss)"
        )
    return LossScale(said, UNEVEN + said, is_measured=True)


def _measure_share(trainer: Any, batch: Any) -> str | None:
    """Return why a loss is not divided by the step's items; "" if it is, None where it fails."""
    try:
        _, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        if items is None:
            return f"{type(trainer).__name__} counts no items in batches"
        inputs = trainer._prepare_inputs(copy.copy(batch))
        with trainer.compute_loss_context_manager():
            once, twice = measure_twice(trainer.compute_loss, trainer, trainer.model, inputs, items)
    except Exception:  # the first microbatch says it again, in training
        return None
    return explain_share(trainer, once, twice) if once else None


def measure_twice(
    compute: Any, trainer: Any, model: Any, inputs: Any, items: Any, **named: Any
) -> tuple[float, float]:
    """Return the loss of a microbatch, and that with twice the items; all else is as before."""
    was_training, losses = model.training, list[float]()
    model.eval()
    try:
        for times in (1, 2):
            with _keep_metrics(trainer), torch.random.fork_rng(), torch.no_grad():
                loss = compute(model, copy.copy(inputs), **{**named, ITEMS: times * items})
            losses.append(float(loss[0] if isinstance(loss, tuple) else loss))
    finally:
        model.train(was_training)
    return losses[0], losses[1]


def explain_share(trainer: Any, once: float, twice: float) -> str:
    """Return why two losses are not those of a sum that is divided by the items; "" if they are."""
    if abs(once - 2 * twice) <= CLOSE * abs(once):
        return ""
    return (
        f"compute_loss of {type(trainer).__name__} does not divide by num_items_in_batch (twice "
        f"the items make {twice:.6g} of {once:.6g}, not half of it), and microbatches of a step "
        "differ in tokens: divide the sum of losses by it"
    )


def measure_loss(trainer: Any) -> None:
    """Let a trainer measure at its first microbatch whether the step's items divide its loss.

    compute_loss is called twice more for that microbatch: without gradients, in evaluation mode,
    with random states put back. Raises ValueError there where twice the items do not halve it.
    """
    compute = trainer.compute_loss

    def compute_measured(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        items = named.get(ITEMS)
        if items is not None and model.training:
            once, twice = measure_twice(compute, trainer, model, inputs, items, **named)
            if once:
                trainer.compute_loss = compute
            if reason := explain_share(trainer, once, twice):
                raise ValueError(f'{reason}, or give Balance(..., counts="equal") to the loader')
        return compute(model, inputs, *more, **named)

    trainer.compute_loss = compute_measured


@contextmanager
def _keep_metrics(trainer: Any) -> Iterator[None]:
    """Have what trainers note of each compute_loss (TRL's _metrics) as before."""
    noted = {
        name: copy.deepcopy(value)
        for name, value in vars(trainer).items()
        if name.endswith("metrics") and isinstance(value, dict)
    }
    try:
        yield
    finally:
        vars(trainer).update(noted)
