"""Notes what a program trains on, in its own processes: a JSON line a microbatch, step, evaluation.

The lines go to $RECORD-RANK.jsonl, gradients to $RECORD-gradients.pt. A sample is told by the
CRC-32 of its token ids without padding, so a batch says which samples it has wherever it was made:
samples of test data must differ.
"""

import atexit
import functools
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import torch


def note(kind: str, **fields: Any) -> None:
    """Write a line: {"kind": kind, **fields}."""
    _file().write(json.dumps({"kind": kind, **fields}) + "\n")


def note_batch(
    step: int, epoch: int, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *,
    labels: torch.Tensor | None = None, position_ids: torch.Tensor | None = None, **fields: Any,
) -> None:  # fmt: skip
    """Note a microbatch: its samples, their lengths, the slots of its tensor, and label tokens.

    Args:
        step: of the optimizer, from 0.
        epoch: of the data, from 0.
        input_ids: (B, L), or (T,) and (1, T) of packed samples.
        attention_mask: (B, L), 0 where padded; None where nothing is.
        labels: -100 where no loss is.
        position_ids: that start anew at each sample, of packed ones.
        fields: what else the line says.
    """
    rows = split_samples(input_ids, attention_mask, position_ids)
    fields |= {"samples": [fingerprint(row) for row in rows], "lengths": [len(row) for row in rows]}
    fields["slots"] = input_ids.numel()
    if labels is not None:
        fields["labels"] = int((labels != -100).sum())
    note("batch", step=step, epoch=epoch, **fields)


def note_step(step: int, loss: float, gradient_norm: float | None, lr: float | None) -> None:
    """Note an optimizer step, as the program reports it."""
    numbers = {"loss": loss, "gradient_norm": gradient_norm, "lr": lr}
    note("step", step=step, **{k: None if v is None else float(v) for k, v in numbers.items()})


def note_evaluation(
    step: int, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> None:
    """Note a batch of an evaluation."""
    rows = split_samples(input_ids, attention_mask)
    note("evaluation", step=step, samples=[fingerprint(row) for row in rows])


def note_plans() -> None:
    """Have each process note at its end what the plans say of the steps that were delivered."""
    import counterpoise as cp

    make = cp.DataLoader.__init__
    loaders: list[Any] = []

    @functools.wraps(make)
    def keep_stats(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **{"keep_stats": True} | named)
        loaders.append(self)

    loader: Any = cp.DataLoader
    loader.__init__ = keep_stats

    def note_delivered() -> None:
        for stats in (loader.stats() for loader in loaders):
            if stats["waiting"]:  # a plain loader plans nothing
                note("plan", steps=stats["steps"], waiting=stats["waiting"])

    atexit.register(note_delivered)


def save_gradients(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Save the gradients of the first call; whole where they are shards, so all ranks call it."""
    whole = {}
    for name, parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is not None:
            shards = hasattr(gradient, "full_tensor")
            whole[name] = (gradient.full_tensor() if shards else gradient).detach().float().clone()
    path = Path(os.environ["RECORD"] + "-gradients.pt")
    if os.environ.get("RANK", "0") == "0" and not path.exists():
        torch.save(whole, path)


def fingerprint(row: torch.Tensor) -> int:
    """Return what tells a sample: the CRC-32 of its token ids."""
    return zlib.crc32(json.dumps(row.tolist()).encode())


def split_samples(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the ids of each sample of a batch, without padding."""
    ids = input_ids.detach().cpu()
    if position_ids is not None:
        starts = (position_ids.detach().cpu().flatten() == 0).nonzero().flatten().tolist()
        return list(ids.flatten().tensor_split(starts[1:]))
    if attention_mask is None:
        return list(ids)
    return [row[kept] for row, kept in zip(ids, attention_mask.detach().cpu().bool(), strict=True)]


def observe_trainer() -> None:
    """Have transformers' Trainer note its batches, steps, evaluations and first gradients.

    A step's loss is the one that it logs: set logging_steps=1.
    """
    from transformers import Trainer

    # Before transformers 5.19 a resumed Trainer wants its optimizer at "cpu:0", unknown to torch.
    torch.serialization.register_package(
        9, lambda _: None, lambda storage, at: storage if at.startswith("cpu:") else None
    )
    train, evaluate, log = Trainer.training_step, Trainer.evaluate, Trainer.log

    @functools.wraps(train)
    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        packed = inputs.get("attention_mask") is None and len(inputs["input_ids"]) == 1
        step, epoch = self.state.global_step, int(self.state.epoch or 0)
        note_batch(
            step, epoch, inputs["input_ids"], inputs.get("attention_mask"),
            labels=inputs.get("labels"), fields=sorted(inputs),
            position_ids=inputs.get("position_ids") if packed else None,
        )  # fmt: skip
        loss = train(self, model, inputs, *args, **named)
        if self.accelerator.sync_gradients and step == 0:
            save_gradients(self.model.named_parameters())
        return loss

    @functools.wraps(evaluate)
    def evaluate_and_note(self: Any, *args: Any, **named: Any) -> Any:
        predict = self.prediction_step  # of a subclass, such as TRL's

        def note_and_predict(model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
            mask = inputs.get("attention_mask")
            note_evaluation(self.state.global_step, inputs["input_ids"], mask)
            return predict(model, inputs, *more, **options)

        self.prediction_step = note_and_predict
        try:
            return evaluate(self, *args, **named)
        finally:
            vars(self).pop("prediction_step", None)

    @functools.wraps(log)
    def log_and_note(self: Any, logs: dict[str, Any], *args: Any, **named: Any) -> Any:
        if "loss" in logs:
            step = self.state.global_step - 1
            note_step(step, logs["loss"], logs.get("grad_norm"), logs.get("learning_rate"))
        elif "eval_loss" in logs:
            note("evaluated", step=self.state.global_step, loss=float(logs["eval_loss"]))
        return log(self, logs, *args, **named)

    Trainer.training_step, Trainer.evaluate = training_step, evaluate_and_note
    Trainer.log = log_and_note


@functools.cache
def _file() -> TextIO:
    path = Path(f"{os.environ['RECORD']}-{os.environ.get('RANK', '0')}.jsonl")
    return path.open("w", buffering=1)
