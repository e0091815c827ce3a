"""transformers' Trainer, its checkpoints, and resume_from_checkpoint."""

from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import counterpoise as cp

from ..tiny import collate, numbers_of
from .runs import Found, Run, Whole, weights


class Causal(torch.nn.Module):
    """The tiny model as transformers' models are: it divides by the tokens of the whole step."""

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, num_items_in_batch: Any = None, **batch: torch.Tensor) -> Any:
        return {"loss": self.whole(batch) / num_items_in_batch}


class Noting(Trainer):
    """Notes the samples of each microbatch that is trained on, with the step."""

    seen: list[tuple[int, list[int]]]

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        self.seen.append((self.state.global_step, numbers_of(inputs)))
        return super().training_step(model, inputs, *args, **named)


def train(run: Run) -> Found:
    arguments = TrainingArguments(
        run.folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", seed=1,
        max_grad_norm=0.0, lr_scheduler_type="constant", max_steps=run.steps,
        gradient_accumulation_steps=run.accumulate, remove_unused_columns=False,
        save_strategy="steps" if run.save and not run.resume else "no", save_steps=run.save or 1,
    )  # fmt: skip
    model = run.model("token")
    optimizers = (run.optimizer(model), None)
    made = Noting(Causal(model), arguments, data_collator=collate, optimizers=optimizers)
    made.seen = []
    loader = run.loader()
    if run.kind == "torch":
        prepared = made.accelerator.prepare(loader)
        made.get_train_dataloader = lambda: prepared
    else:
        cp.adapters.attach_trainer(made, loader)
    made.train(resume_from_checkpoint=f"{run.folder}/checkpoint-{run.save}" if run.resume else None)
    return made.seen, weights(model)
