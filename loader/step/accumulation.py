"""Checks that a framework's optimizer steps where a balanced loader's steps end.

Lightning tells a loader nothing about its Trainer, and nothing has to be attached to it; but what
iterates over the loader is the Trainer's fit loop, so the Trainer is found among the callers. That
is good enough to refuse, not to decide: lengths are asked for before, of loaders of validation too,
and a plan must not depend on who asks first. So balance="auto" does not take its accumulation here.
"""

import sys
from types import FrameType
from typing import Any

# Where Lightning's Trainer is, under both names of its package.
TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def check_accumulation(ours: int | str, theirs: int, option: str, several: bool = False) -> None:
    """Raise ValueError where an optimizer step would not be a planned one.

    ours: the microbatches of a step, "auto" if steps differ. theirs: how many the framework
    accumulates, by its `option`. several: whether it may step after several planned steps.
    """
    if ours == "auto":
        raise ValueError(
            'with accumulate="auto" steps differ in their number of microbatches, and '
            f"{option} is a fixed one: loop over loader.steps(), give "
            "Lightning cp.loader.StepLoader(loader) and use manual optimization, or give "
            "Balance(accumulate=...)"
        )
    if theirs % int(ours) or (theirs != ours and not several):
        raise ValueError(
            f"{option} is {theirs}, and a step of this loader has {ours} microbatches: give "
            f"{option}={ours}, or accumulate={theirs} to the Balance of the loader"
        )


def check_lightning(loader: Any) -> None:
    """Raise ValueError where Trainer.fit, if it is the caller, accumulates another number.

    loader: a balanced one of ours. With manual optimization the loop steps where it wants.
    """
    trainer = _find_trainer()
    if trainer and trainer.training and trainer.lightning_module.automatic_optimization:
        ours = loader._balanced.microbatches_per_step
        check_accumulation(ours, trainer.accumulate_grad_batches, "accumulate_grad_batches")


def holds_a_batch() -> bool:
    """Return whether Lightning's Trainer, if among the callers, has a batch in reserve.

    Of loaders without len() it takes one more than it trains on, to know which is the last.
    """
    trainer = _find_trainer()
    return trainer is not None and bool(getattr(trainer.fit_loop._data_fetcher, "batches", ()))


def _find_trainer() -> Any:
    """Return the Trainer of Lightning among the callers; None for none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # A frame that is asked for its variables keeps what they were until its function returns
        # (an iterator that the user has deleted since): only Lightning's own is asked.
        if frame.f_globals.get("__name__") in TRAINERS and "self" in frame.f_code.co_varnames:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
