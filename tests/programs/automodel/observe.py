"""Notes what Automodel's SFT recipe trains on."""

from typing import Any

from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction as Recipe

from tests.programs import recording

train, validate, log = (
    Recipe._run_train_optim_step,
    Recipe._forward_backward_step,
    Recipe.log_val_metrics,
)


def _train(self: Any, batches: Any, *args: Any, **named: Any) -> Any:
    scheduler = self.step_scheduler
    for batch in batches:
        mask, labels = batch.get("attention_mask"), batch["labels"]
        ids = batch["input_ids"]
        recording.note_batch(scheduler.step, scheduler.epoch, ids, mask, labels=labels)
    if scheduler.step == 0:
        self.optimizer[0].register_step_pre_hook(
            lambda *_: recording.save_gradients(self.model_parts[0].named_parameters())
        )
    sample = train(self, batches, *args, **named)
    numbers = [sample.metrics[name] for name in ("loss", "grad_norm", "lr")]
    recording.note_step(scheduler.step, *numbers)
    return sample


def _validate(self: Any, index: int, batch: Any, *args: Any, **named: Any) -> Any:
    if not named.get("is_train", True):
        step = self.step_scheduler.step
        recording.note_evaluation(step, batch["input_ids"], batch.get("attention_mask"))
    return validate(self, index, batch, *args, **named)


def _log(self: Any, name: str, sample: Any, *args: Any) -> None:
    recording.note("evaluated", step=sample.step, loss=float(sample.metrics["val_loss"]))
    log(self, name, sample, *args)


Recipe._run_train_optim_step, Recipe._forward_backward_step = _train, _validate
Recipe.log_val_metrics = _log
