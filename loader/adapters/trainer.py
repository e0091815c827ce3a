"""`attach_trainer`: a loader for transformers.Trainer and its subclasses, TRL's SFTTrainer too.

Trainer asks for its loader by `get_train_dataloader`, fetches all microbatches of an optimizer step
before the first is trained on, and divides their losses by the label tokens of the step on all
ranks (`num_items_in_batch`): nothing is left to scale. It resumes by skipping, which a plan does
not need: the ledger is in the checkpoint, as the state of a callback.
"""

import functools
from typing import Any

from ..collate.hugging_face import NEEDED, hf_kwargs
from .accelerate import check_step, prepare_accelerate
from .padded_gather import is_planned
from .recognition import RecognisedLoader
from .trainer_ledger import ledger_callback, with_known_epochs


def attach_trainer(trainer: Any, loader: Any, eval_loader: Any = None) -> Any:
    """Make a transformers.Trainer train on a loader, evaluate on another, and return the trainer.

    A balanced loader is used as it is, its ledger is saved in and loaded from checkpoints; a plain
    one, and `eval_loader`, are sharded as by accelerate and keep our workers. Batches of layout
    "packed" get hf_kwargs. Raises ValueError for gradient_accumulation_steps that is not the
    loader's accumulate, for a loss that is not normalised by the tokens of the whole step, for a
    balanced eval_loader, and in modes "window" and "epoch" for TrainingArguments without max_steps.
    """
    if not isinstance(loader, RecognisedLoader):
        raise ValueError(
            f"attach_trainer takes a counterpoise.DataLoader, got a {type(loader).__name__}"
        )
    if eval_loader is not None:
        _attach_evaluation(trainer, eval_loader)
    if not loader.is_balanced:
        prepared = prepare_accelerate(trainer.accelerator, loader)
        trainer.get_train_dataloader = lambda: prepared
        return trainer
    check_step(loader, trainer.args.gradient_accumulation_steps, "gradient_accumulation_steps")
    _check_loss(trainer)
    feed = with_known_epochs(loader, trainer.args.max_steps)
    trainer.args.ignore_data_skip = True  # the ledger says where to go on
    trainer.get_train_dataloader = lambda: feed
    trainer.get_batch_samples = functools.partial(_get_packed, trainer.get_batch_samples)
    trainer.add_callback(ledger_callback(loader))
    return trainer


def _attach_evaluation(trainer: Any, loader: Any) -> None:
    if is_planned(loader):
        raise ValueError(
            "Trainer weighs all batches of an evaluation alike, and those of a balanced loader "
            "differ in size: give eval_loader=cp.DataLoader(data, batch_size=...), without balance"
        )
    prepared = prepare_accelerate(trainer.accelerator, loader)
    trainer.get_eval_dataloader = lambda *_, **__: prepared


def _check_loss(trainer: Any) -> None:
    """Raise ValueError unless losses are divided by the label tokens of all microbatches."""
    if not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None):
        raise ValueError(
            f"the loss of {type(trainer.model).__name__} is a mean over one microbatch, and those "
            "of a step differ in tokens: let its forward take **kwargs with num_items_in_batch and "
            "divide the sum of losses by it, or give Trainer(compute_loss_func=...), which gets it"
        )
    if not trainer.args.average_tokens_across_devices and trainer.args.world_size > 1:
        raise ValueError(
            "average_tokens_across_devices=False divides by the tokens of one rank, and ranks "
            "differ: leave it True in TrainingArguments"
        )


def _get_packed(get_batch_samples: Any, *args: Any, **named: Any) -> Any:
    """Return Trainer's microbatches and count of a step; packed ones as a model takes them."""
    batches, count = get_batch_samples(*args, **named)
    return [for_model(batch) for batch in batches], count


def for_model(batch: Any) -> Any:
    """Return a packed batch as the arguments of a Hugging Face model; any other as it is."""
    if not isinstance(batch, dict) or not all(name in batch for name in NEEDED):
        return batch
    kept = {name: value for name, value in batch.items() if name not in NEEDED}
    return {**kept, **hf_kwargs(batch)}
