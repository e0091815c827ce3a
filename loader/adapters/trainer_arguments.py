"""Compares what a Trainer and its arguments say of loading with the loader that is attached."""

import logging
from dataclasses import fields
from typing import Any

from torch.utils.data import RandomSampler

from ..step.waiting import tell
from .recognition import RecognisedLoader

logger = logging.getLogger(__name__)


def check_loading(trainer: Any, loader: Any, size: float | None) -> None:
    """Raise ValueError where TrainingArguments say other of loading than the loader has.

    size: its samples in a microbatch, in the mean; None where a sampler decides. That an argument
    has Trainer's default does not say that it was given, nor does a batch_size of 1; a batch size
    that the user has left to the loader becomes Trainer's, which counts samples by it.
    """
    args = trainer.args
    has = {
        "dataloader_drop_last": loader.drop_last,
        "dataloader_num_workers": loader.num_workers,
        "dataloader_pin_memory": loader.pin_memory,
        "dataloader_persistent_workers": loader.persistent_workers,
        "dataloader_prefetch_factor": loader.prefetch_factor,
        "dataloader_multiprocessing_context": loader.multiprocessing_context,
        "dataloader_in_order": getattr(loader, "in_order", True),
        "auto_find_batch_size": False,
    }
    if loader.is_balanced:
        has["data_seed"] = seed = loader._arguments.balance.seed
        if args.data_seed is None and args.seed not in (seed, type(args).seed):
            tell(
                logger,
                f"the order of samples is that of Balance(seed={seed}); "
                f"seed={args.seed} of TrainingArguments would give another",
            )
    check_said(args, has)
    if size is None:
        return
    batch, batch_size = "per_device_train_batch_size", args.per_device_train_batch_size
    check_said(args, {batch: size}, is_open=size == 1)
    if size != batch_size:
        args.per_device_train_batch_size = max(1, round(size))
        trainer._train_batch_size = args.train_batch_size
        tell(
            logger,
            f"{batch} is {batch_size} by default, and the loader's {size:g} samples are taken",
        )


def check_said(args: Any, has: dict[str, Any], is_open: bool = False) -> None:
    """Raise ValueError for arguments that differ from what a loader has.

    is_open: also for those that have Trainer's default.
    """
    defaults = {argument.name: argument.default for argument in fields(args)}
    for name, ours in has.items():
        theirs = getattr(args, name, ours)
        if theirs != ours and (is_open or theirs != defaults.get(name)):
            raise ValueError(
                f"{name} is {theirs} in TrainingArguments, and the loader has {ours}: its batches "
                f"are trained on as they are; give TrainingArguments({name}={ours}), or a "
                f"DataLoader that has {theirs}"
            )


def check_strategy(trainer: Any, loader: Any = None) -> None:
    """Raise ValueError where Trainer, a subclass or TRL is to choose samples or to join them.

    loader: None where it is to be made by the trainer's own get_train_dataloader.
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise ValueError(f"attach_trainer takes a transformers.Trainer, got {type(trainer)}")
    owner = next(base for base in type(trainer).__mro__ if "get_train_dataloader" in vars(base))
    if loader is not None and owner is not Trainer:
        raise ValueError(
            f"{owner.__name__}.get_train_dataloader makes batches of its own, and would not be "
            "called: leave the loader, and attach_trainer(trainer) calls it and takes over what it "
            "does to data and collator"
        )
    strategy = getattr(trainer.args, "train_sampling_strategy", "random")
    is_balanced = loader is None or loader.is_balanced
    shuffles = isinstance(getattr(loader, "sampler", None), RandomSampler)
    if loader is not None and loader.is_balanced:
        shuffles = loader._arguments.shuffle
    if strategy == "sequential" and shuffles:
        raise ValueError(
            "train_sampling_strategy='sequential' keeps the data's order, and the loader has "
            "shuffle=True: give DataLoader(shuffle=False), or leave the strategy"
        )
    if not is_balanced:
        return
    if getattr(trainer.args, "group_by_length", False):  # its name in transformers 4
        option = "group_by_length=True"
    elif strategy not in ("random", "sequential"):
        option = f"train_sampling_strategy={strategy!r}"
    elif getattr(trainer.args, "packing", False):  # TRL; rows of its data would count as samples
        option = "packing=True"
    else:
        return
    raise ValueError(
        f"{option} makes batches by length, and so does a balanced loader: one of the two has to "
        f"go; leave out {option.partition('=')[0]} in the trainer's arguments, or attach_trainer()"
    )


def check_is_ours(loader: Any, argument: str) -> None:
    """Raise ValueError where another class' loader is given; argument: its name, or a function."""
    if not isinstance(loader, RecognisedLoader):
        kind = type(loader)
        raise ValueError(
            f"{argument} takes a counterpoise.DataLoader, got a {kind.__module__}."
            f"{kind.__qualname__}: make it by counterpoise.DataLoader(...), with the same arguments"
        )
