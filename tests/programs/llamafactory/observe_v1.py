"""Has LLaMA-Factory's v1 trainer note what it trains on, and lets it train on CPU ranks."""

from typing import Any

import torch

from tests.programs.recording import note_batch, note_step


def observe_v1(module: Any) -> None:
    """Observe the class of sft_trainer, which has been executed.

    The trainer waits for its accelerator at each step, and on CPU there is none.
    """
    from llamafactory.v1.utils.callbacks import CallbackHandler

    if not torch.accelerator.is_available():
        torch.accelerator.synchronize = lambda *_: None
    compute, log = module.SFTTrainer.compute_loss, CallbackHandler.on_log

    def compute_loss(self: Any, batch: Any) -> Any:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        note_batch(self.global_step - 1, self.state.epoch, ids, mask, labels=batch["labels"])
        return compute(self, batch)

    def on_log(self: Any, args: Any, state: Any, logs: dict[str, Any]) -> None:
        note_step(logs["step"] - 1, logs["loss"], logs["grad_norm"], logs["learning_rate"])
        log(self, args, state, logs)

    module.SFTTrainer.compute_loss, CallbackHandler.on_log = compute_loss, on_log
