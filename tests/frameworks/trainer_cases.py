"""What the tests of transformers.Trainer run in each process of a pool."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from inspect import getsource
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils.logging import set_verbosity_error

import counterpoise as cp

from .tiny import KEPT, VOCABULARY, Texts, balanced, collate, cost, error_of, numbers_of, plain

set_verbosity_error()
SHIFTS = int("_loss_shifts_labels" in getsource(Trainer))


def model() -> LlamaForCausalLM:
    """A language model of one small layer, the same in every process."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


class Noting(Trainer):
    """Notes the samples of each microbatch that is trained on, with the step."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.seen: list[tuple[int, list[int]]] = []
        self.names: set[tuple[str, ...]] = set()

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        self.seen.append((self.state.global_step, numbers_of(inputs)))
        self.names.add(tuple(sorted(inputs)))
        return super().training_step(model, inputs, *args, **named)


def trainer(folder: str, accumulation: int = 1, **named: Any) -> Noting:
    """Return a quiet trainer with SGD; model: another than model()."""
    trained = named.pop("model", None)
    named.setdefault("num_train_epochs", 1)
    named.setdefault("save_strategy", "no")
    arguments = TrainingArguments(
        folder, use_cpu=True, report_to=[], disable_tqdm=True, optim="sgd", learning_rate=0.1,
        lr_scheduler_type="constant", gradient_accumulation_steps=accumulation, max_grad_norm=0.0,
        logging_strategy="no", seed=1, **named,
    )  # fmt: skip
    return Noting(
        model=model() if trained is None else trained, args=arguments, data_collator=collate
    )


def counted(labels: torch.Tensor) -> int:
    """Return the label tokens that Trainer divides by: older ones count a sample's first, too."""
    return int(labels[:, SHIFTS:].ne(-100).sum())


def weights(made: Any) -> list[np.ndarray]:
    return [each.detach().numpy().copy() for each in made.model.parameters()]


class TextStream(IterableDataset[Any]):
    """Every n-th of the samples, on each of n ranks."""

    def __iter__(self) -> Iterator[Any]:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if ranks > 1 else 0
        texts = Texts()
        return (texts[number] for number in range(rank, len(texts), ranks))


def collate_some(samples: list[Any]) -> Any:
    """Collate as collators of Hugging Face do: not without samples."""
    return collate([samples[0], *samples[1:]])


def in_mode(mode: Any) -> Any:
    """Return a loader whose number of steps is not known before the epoch is planned."""
    if mode == "stream":
        packs = cp.Balance("balanced", budgets={"tokens": 60}, accumulate=2)
        KEPT.append(cp.DataLoader(TextStream(), balance=packs, cost=cost, collate_fn=collate_some))
        return KEPT[-1]
    balance = cp.Balance(
        "balanced", budgets={"tokens": 120}, samples_per_step=24, accumulate=2, mode=mode, seed=5
    )
    loader = cp.DataLoader(Texts(), balance=balance, cost=cost, collate_fn=collate, shuffle=True)
    KEPT.append(loader)
    return loader


def of_unknown_length(folder: str, mode: str, at: int) -> tuple[Any, ...]:
    """(two epochs by hand, under Trainer, its epochs; the steps after a checkpoint; an error)."""
    attach, loader = cp.adapters.attach_trainer, in_mode(mode)
    steps = [
        (info.epoch, [numbers_of(batch) for batch in step.microbatches])
        for _ in range(2)
        for step in loader.steps()
        for info in step.infos[:1]
    ]
    named: dict[str, Any] = {"max_steps": len(steps)}
    first = trainer(folder, 2, save_strategy="steps", save_steps=at, **named)
    attach(first, in_mode(mode)).train()
    again = trainer(folder, 2, **named)
    attach(again, in_mode(mode)).train(resume_from_checkpoint=f"{folder}/checkpoint-{at}")
    error = error_of(lambda: attach(trainer(folder, 2), in_mode(mode)))
    return steps, first.seen, (first.state.epoch, again.state.epoch), again.seen, error


def not_attached(folder: str) -> str:
    """What happens when a Trainer is only given the loader, and resumes by skipping."""
    loader = balanced()
    made = trainer(folder, max_steps=4, save_strategy="steps", save_steps=2)
    made.get_train_dataloader = lambda: loader
    made.train()
    again = trainer(folder, max_steps=4)
    again.get_train_dataloader = lambda: balanced()
    return error_of(lambda: again.train(resume_from_checkpoint=f"{folder}/checkpoint-2"))


def attach_errors(folder: str) -> list[str]:
    """What attach_trainer says to: accumulation, a loss of its own mean, balanced evaluation."""

    class Mean(torch.nn.Module):
        def forward(self, input_ids: Any, labels: Any) -> None: ...

    made = trainer(folder, 1)
    arguments = TrainingArguments(folder, use_cpu=True, report_to=[])
    mean = Trainer(model=Mean(), args=arguments)
    attach = cp.adapters.attach_trainer
    return [
        error_of(lambda: attach(made, balanced(accumulate=4))),
        error_of(lambda: attach(mean, balanced())),
        error_of(lambda: attach(made, balanced(), eval_loader=balanced())),
        error_of(lambda: attach(made, [1])),
    ]


def sampling_by_length(folder: str, is_trl: bool) -> str:
    """What attach_trainer says where Trainer, or TRL, is to make batches by length."""
    made = trainer(folder)
    if is_trl:
        made.args.packing = True
    elif hasattr(made.args, "train_sampling_strategy"):
        made.args.train_sampling_strategy = "batch_rebalance"
    else:  # transformers 4
        made.args.group_by_length = True
    return error_of(lambda: cp.adapters.attach_trainer(made, balanced()))


def evaluated(folder: str, count: int) -> list[int]:
    """The samples that metrics are computed of in an evaluation."""
    found: list[int] = []

    def note(prediction: Any) -> dict[str, float]:
        ids = prediction.label_ids
        found.extend((ids[:, 0] * VOCABULARY + ids[:, 1]).tolist())
        return {}

    arguments = TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True)
    made = Trainer(model=model(), args=arguments, compute_metrics=note)
    cp.adapters.attach_trainer(made, balanced(), plain(count, num_workers=1))
    made.evaluate()
    return found


def loading_said_twice(folder: str) -> tuple[list[str], int]:
    """What attach_trainer says of arguments that the loader has otherwise; a size taken over."""

    def attached(loader: Any, **said: Any) -> Any:
        return cp.adapters.attach_trainer(trainer(folder, **said), loader)

    fixed: dict[str, Any] = {"balance": "fixed", "shuffle": True}
    errors = [
        error_of(lambda: attached(plain(batch_size=1), per_device_train_batch_size=4)),
        error_of(lambda: attached(plain(batch_size=1))),
        error_of(lambda: attached(plain(**fixed), per_device_train_batch_size=2)),
        error_of(lambda: attached(plain(**fixed), dataloader_num_workers=2)),
        error_of(lambda: attached(plain(**fixed), dataloader_drop_last=True)),
        error_of(lambda: attached(plain(**fixed), auto_find_batch_size=True)),
        error_of(lambda: attached(plain(**fixed), data_seed=3)),
        error_of(lambda: attached(plain(**fixed), dataloader_in_order=False)),
        error_of(lambda: attached(plain(**fixed), dataloader_multiprocessing_context="spawn")),
        error_of(lambda: attached(plain(**fixed), train_sampling_strategy="sequential")),
        error_of(lambda: attached(plain(shuffle=True), train_sampling_strategy="sequential")),
        error_of(lambda: cp.adapters.attach_trainer(Loading(**made(folder)), plain(**fixed))),
        error_of(lambda: cp.adapters.attach_trainer(Loading(**made(folder)), plain())),
    ]
    same = attached(plain(**fixed), per_device_train_batch_size=4)
    taken = attached(plain(**fixed))
    assert same.args.per_device_train_batch_size == 4
    return errors, taken.args.per_device_train_batch_size


class Loading(Trainer):
    """Makes its own batches."""

    def get_train_dataloader(self) -> Any:
        return []


def made(folder: str) -> dict[str, Any]:
    """Return the arguments of a Trainer."""
    return {"model": model(), "args": TrainingArguments(folder, use_cpu=True, report_to=[])}


def set_of(word: int) -> list[dict[str, torch.Tensor]]:
    """Eight texts of one word."""
    return [{"input_ids": torch.full((6,), word), "labels": torch.full((6,), word)}] * 8


def evaluations(folder: str) -> dict[str, Any]:
    """The losses of Trainer alone and with eval_loader, of its own sets and others; an error."""
    attach, sets = cp.adapters.attach_trainer, {"a": set_of(3), "b": set_of(9)}

    def trainer_of(eval_dataset: Any) -> Trainer:
        return Trainer(
            **made(folder), data_collator=collate_texts, eval_dataset=eval_dataset,
            train_dataset=set_of(3),
        )  # fmt: skip

    def loss_of(found: Any) -> dict[str, float]:
        return {name: value for name, value in found.items() if name.endswith("loss")}

    def loader_of(word: int) -> cp.DataLoader[Any]:
        KEPT.append(cp.DataLoader(set_of(word), batch_size=8, collate_fn=collate_texts))
        return KEPT[-1]

    alone, by_name, one = trainer_of(sets), trainer_of(sets), trainer_of(sets["a"])
    attach(by_name, balanced(), {"a": loader_of(3), "b": loader_of(9)})
    attach(one, balanced(), loader_of(9))  # of others than its own set: to be told apart
    return {
        "alone": loss_of(alone.evaluate()),
        "by name": loss_of(by_name.evaluate()),
        "own": loss_of(one.evaluate()),
        "other": loss_of(one.evaluate(set_of(3))),
        "predicted": loss_of(one.predict(set_of(3)).metrics),
        "error": error_of(lambda: attach(trainer_of(sets), balanced(), loader_of(3))),
    }


def collate_texts(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}


def own_loss(folder: str, counts: str | None, divides: bool) -> tuple[str, int, bool]:
    """An error of training with a compute_loss of one's own; its calls; random states are equal."""
    calls = list[torch.Tensor]()

    class Weighing(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **named: Any) -> torch.Tensor:
            calls.append(torch.get_rng_state())
            labels = inputs["labels"][:, 1:]
            logits = model(inputs["input_ids"]).logits[:, :-1].flatten(0, 1)
            total = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
            return total / (named["num_items_in_batch"] if divides else labels.ne(-100).sum())

    arguments = TrainingArguments(folder, use_cpu=True, report_to=[], max_steps=2)
    weighing = Weighing(model=model(), args=arguments)
    more: dict[str, Any] = {} if counts is None else {"counts": counts}
    loader: Any = plain(balance=cp.Balance("auto", **more), shuffle=True)
    cp.adapters.attach_trainer(weighing, loader)
    error = error_of(weighing.train)
    return error, len(calls), all(torch.equal(calls[0], each) for each in calls[:3])


def stats_in_logs(folder: str, is_plain: bool) -> tuple[list[str], dict[str, float]]:
    """Return the names that Trainer logs with the loss, and what the loader has counted."""
    made = trainer(folder)
    made.args.logging_strategy, made.args.logging_steps = "steps", 1
    loader = plain(keep_stats=True) if is_plain else balanced(keep_stats=True)
    cp.adapters.attach_trainer(made, loader)
    made.train()
    logs = next(each for each in made.state.log_history if "loss" in each)
    return sorted(logs), loader.stats(flat=True)


def said_after_epochs(folder: str) -> tuple[str, str]:
    """Return what a loader with keep_stats="report" writes in two epochs, and its last report."""
    made, loader = trainer(folder, num_train_epochs=2), balanced(keep_stats="report")
    said = io.StringIO()
    cp.adapters.attach_trainer(made, loader)
    with redirect_stderr(said):
        made.train()
    return said.getvalue(), loader.report()
