"""Keeps a balanced loader's ledger in the checkpoints of a transformers.Trainer, and its epochs.

Trainer counts steps and epochs from the length of its loader. Modes "window" and "epoch" have none
before the plan is made: Trainer then takes max_steps for the length of an epoch, and begins at
epoch 0 again where it resumes. The loader's own count is right, and goes on by itself.
"""

from collections.abc import Iterator
from typing import Any

LEDGER = "counterpoise ledger"


class OwnEpochs:
    """A balanced loader that has no length, and whose epochs Trainer does not choose."""

    def __init__(self, loader: Any) -> None:
        """Hand out the batches of `loader`; what else is asked for is the loader's."""
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch, or go on at its ledger."""
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has under a name."""
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Leave the loader's epoch: Trainer's own is another after a checkpoint."""


def with_known_epochs(loader: Any, max_steps: int) -> Any:
    """Return what Trainer is to iterate over; ValueError if neither side knows when to end."""
    if loader._balanced.plan.mode == "exact":
        return loader
    if max_steps <= 0:
        raise ValueError(
            f"in mode {loader._balanced.plan.mode!r} the number of steps in an epoch is not known "
            "beforehand, and Trainer needs it for num_train_epochs: give "
            'TrainingArguments(max_steps=...), or Balance(mode="exact") to the loader'
        )
    return OwnEpochs(loader)


def ledger_callback(loader: Any) -> Any:
    """Return the callback that writes the ledger into checkpoints and goes on from it."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    is_exact = loader._balanced.plan.mode == "exact"

    class LedgerCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
        """Trainer saves what state() returns in trainer_state.json under the class' name."""

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {LEDGER: loader.state_dict()}}

        def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step:
                loader.load_state_dict(saved_ledger(state, type(self).__name__))
            elif not is_exact:
                loader.set_epoch(0)  # what Trainer does itself where it counts epochs

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            # Trainer counts an epoch's batches from where it resumed
            state.epoch = state.global_step / loader.num_steps if is_exact else epoch_of(loader)

    return LedgerCallback()


def epoch_of(loader: Any) -> float:
    """Return the epoch of the microbatch that was fetched last; Trainer fetches whole steps."""
    return float(loader.step_info.epoch)


def saved_ledger(state: Any, name: str) -> dict[str, Any]:
    """Return the ledger in a TrainerState, ValueError if there is none."""
    saved = (state.stateful_callbacks or {}).get(name)
    if not isinstance(saved, dict):
        raise ValueError(
            "the checkpoint has no ledger of a loader: it was saved without "
            "attach_trainer(trainer, loader), and no position follows from it; begin with "
            "a whole epoch: train() without resume_from_checkpoint"
        )
    return saved["attributes"][LEDGER]  # type: ignore[no-any-return]
