"""What the tests of attach_trainer without a loader run in each process of a pool."""

import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset as Rows
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import counterpoise as cp
from counterpoise.loader.adapters.trainer_loader import find_ranks, make_loader

from .sft_cases import tokenizer
from .tiny import KEPT, Texts, collate, error_of, numbers_of
from .trainer_cases import Noting, TextStream, model

FIELDS = (
    "batch_size", "drop_last", "num_workers", "prefetch_factor", "pin_memory", "timeout",
    "persistent_workers", "in_order", "pin_memory_device",
)  # fmt: skip


class Labelled(Dataset[Any]):
    """Texts with their labels, a field that no model takes, and as many as asked for."""

    def __init__(self, count: int = 96) -> None:
        self.texts = Texts(count)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.texts[index], "note": "no argument of the model"}


def as_rows(count: int = 96, **columns: Any) -> Rows:
    """Return the same as a datasets.Dataset, with more columns."""
    texts = Texts(count)
    ids = [texts[k]["input_ids"].tolist() for k in range(count)]
    return Rows.from_dict({"input_ids": ids, "labels": ids, "note": ["none"] * count, **columns})


def collate_lists(samples: list[Any]) -> Any:
    """Collate samples whose ids are lists, and that have nothing but a model's arguments."""
    assert all({*sample} <= {"input_ids", "labels"} for sample in samples)
    return collate([{"input_ids": torch.as_tensor(sample["input_ids"])} for sample in samples])


def arguments(folder: str, **named: Any) -> TrainingArguments:
    named = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, **named}
    return TrainingArguments(
        folder, use_cpu=True, report_to=[], disable_tqdm=True, optim="sgd", learning_rate=0.1,
        lr_scheduler_type="constant", max_grad_norm=0.0, seed=7,
        **{"save_strategy": "no", "num_train_epochs": 1, **named},
    )  # fmt: skip


def noting(folder: str, data: Any = None, kind: type = Noting, **named: Any) -> Any:
    """Return a trainer that notes what it is trained on."""
    collator = named.pop("data_collator", collate_lists)
    data = as_rows() if data is None else data
    return kind(
        model=model(), args=arguments(folder, **named), data_collator=collator, train_dataset=data
    )


class Odd(Noting):
    """Has a sampler, a loader or an accelerator of its own."""

    loader: Any = None
    sampler: Any = None

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self.loader is None else self.loader()

    def _get_train_sampler(self, *args: Any) -> Any:
        return super()._get_train_sampler(*args) if self.sampler is None else self.sampler()


def describe(loader: Any) -> dict[str, Any]:
    """Return the fields of a loader as values that can be compared."""
    init, collator = loader.worker_init_fn, loader.collate_fn
    inner = getattr(collator, "data_collator", None)
    context = loader.multiprocessing_context
    return {
        **{name: getattr(loader, name) for name in FIELDS},
        "columns": getattr(loader.dataset, "column_names", type(loader.dataset)),
        "collator": (getattr(collator, "__name__", type(collator).__name__), inner),
        "columns taken": getattr(collator, "signature_columns", None),
        "begins": (init.func, init.keywords),
        "context": context and context.get_start_method(),
    }


def fields(folder: str, kind: str) -> tuple[Any, Any]:
    """(fields of our loader, those of the one that Trainer makes)."""
    named: dict[str, Any] = {
        "dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "dataloader_drop_last": True,
        "dataloader_persistent_workers": True, "dataloader_pin_memory": False,
        "dataloader_in_order": False, "dataloader_multiprocessing_context": "fork",
    }  # fmt: skip
    if kind == "sequential":
        named = {"dataloader_num_workers": 2, "train_sampling_strategy": "sequential"}
    data = Labelled() if kind == "objects" else as_rows()
    made = noting(folder, data, Odd if kind == "subclass" else Noting, **named)
    theirs = made.get_train_dataloader()
    ours = make_loader(made, made.get_train_dataloader, "auto", None)
    described = describe(theirs)
    described["batch_size"] = theirs.batch_sampler.batch_size
    described["drop_last"] = theirs.batch_sampler.drop_last
    return describe(ours), described


def loaders_of(made: Any) -> list[Any]:
    """Return the balanced loaders whose ledger a trainer saves."""
    callbacks = made.callback_handler.callbacks
    return [callback.ledger_of for callback in callbacks if hasattr(callback, "ledger_of")]


def trained(made: Any, **named: Any) -> Any:
    made.train(**named)
    KEPT.extend(loaders_of(made))
    return made


def steps_of_both(folder: str, strategy: str) -> tuple[Any, Any]:
    """The samples of each step in two epochs, attached and not."""
    named: dict[str, Any] = {"num_train_epochs": 2, "train_sampling_strategy": strategy}
    ours = cp.adapters.attach_trainer(noting(folder, **named))
    return trained(ours).seen, trained(noting(folder, **named)).seen


class Counting(Noting):
    """Counts padded tokens too."""

    padded = 0

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        self.padded += inputs["input_ids"].numel()
        return super().training_step(model, inputs, *args, **named)


def losses_of_both(folder: str) -> tuple[Any, Any, tuple[int, int]]:
    """Loss and norm of the gradient of each step, attached and not; tokens with padding."""
    named = {"logging_strategy": "steps", "logging_steps": 1, "max_grad_norm": 1.0}
    ours, theirs = (noting(folder, kind=Counting) for _ in range(2))
    for made in (ours, theirs):
        for name, value in named.items():
            setattr(made.args, name, value)
    cp.adapters.attach_trainer(ours)
    logs = [
        [(log["loss"], log["grad_norm"]) for log in trained(made).state.log_history[:-1]]
        for made in (ours, theirs)
    ]
    counts = torch.tensor([ours.padded, theirs.padded])
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(counts)
    return logs[0], logs[1], tuple(counts.tolist())


def resumed(folder: str) -> tuple[Any, Any]:
    """The samples of each step, and those after a checkpoint inside the second epoch."""
    named: dict[str, Any] = {"num_train_epochs": 2, "gradient_accumulation_steps": 8}
    named |= {"save_strategy": "steps", "save_steps": 5}
    whole, again = (cp.adapters.attach_trainer(noting(folder, **named)) for _ in range(2))
    trained(whole)
    trained(again, resume_from_checkpoint=f"{folder}/checkpoint-5")
    return whole.seen, again.seen


def changed_later(folder: str) -> tuple[int, list[int], int]:
    """Steps and samples of a trainer whose data and batch size change; callbacks with a ledger."""
    made = noting(folder, as_rows(96))
    cp.adapters.attach_trainer(made)
    made.train_dataset = as_rows(48)
    made.args.per_device_train_batch_size = made._train_batch_size = 3
    trained(made)
    steps, numbers = made.state.global_step, [n for _, batch in made.seen for n in batch]
    trained(made)
    return steps, sorted(numbers), len(loaders_of(made))


def refused(folder: str) -> dict[str, str]:
    """The errors of attaching to what cannot be planned."""
    attach = cp.adapters.attach_trainer
    weighted = lambda: WeightedRandomSampler([1.0] * 96, 96)  # noqa: E731

    def error(change: Callable[[Any], Any] = lambda _: None, data: Any = None, **named: Any) -> str:
        made = noting(folder, data, Odd, **named)
        change(made)
        return error_of(lambda: attach(made))

    def fail() -> Any:
        raise RuntimeError("called")

    def pack(made: Any) -> None:
        made.args.sample_packing, made.loader = True, fail

    def plan_for(sizes: dict[str, int]) -> str:
        accelerator = SimpleNamespace(parallelism_config=SimpleNamespace(**sizes))
        args = SimpleNamespace(n_gpu=1, world_size=4)
        return error_of(lambda: find_ranks(SimpleNamespace(args=args, accelerator=accelerator)))

    lengths = Texts().lengths
    wrong = [*lengths[:5], 7, *lengths[6:]]
    loader = cp.DataLoader(Texts(), batch_size=4, collate_fn=collate)
    packing = error(pack)
    return {
        "both": error_of(lambda: attach(noting(folder), loader, balance="fixed")),
        "sampler": error(lambda made: setattr(made, "sampler", weighted)),
        "loader": error(lambda made: setattr(made, "loader", list)),
        "ours": error(lambda made: setattr(made, "loader", lambda: loader)),
        "packing": packing,
        "called": "called" if "RuntimeError" in packing else "",
        "strategy": error(lambda _: None, train_sampling_strategy="group_by_length"),
        "gpus": error(lambda made: setattr(made.args, "_n_gpu", 2)),
        "stream": streamed_on_two(folder),
        "parallel": plan_for({"cp_size": 2, "sp_size": 1}),
        "column": error(data=as_rows(length=wrong)),
    }


def streamed_on_two(folder: str) -> str:
    made = noting(folder, TextStream(), max_steps=2)
    made.args = SimpleNamespace(world_size=2, train_sampling_strategy="random", n_gpu=1)
    theirs = DataLoader(TextStream(), batch_size=4, collate_fn=collate)
    return error_of(lambda: make_loader(made, lambda: theirs, "auto", None))


def streamed(folder: str) -> tuple[list[int], str]:
    """The samples of a stream that a trainer is trained on, and what is said of it."""
    text = io.StringIO()
    with redirect_stderr(text):
        made = noting(folder, TextStream(), max_steps=12, data_collator=collate)
        trained(cp.adapters.attach_trainer(made))
    return sorted(n for _, batch in made.seen for n in batch), text.getvalue()


def attached_too_late(folder: str) -> tuple[str, str]:
    """What is said after train(), and of a checkpoint that was saved without us."""
    made, text = noting(folder, max_steps=2, save_strategy="steps", save_steps=2), io.StringIO()
    made.train()
    with redirect_stderr(text):
        cp.adapters.attach_trainer(made)
    again = cp.adapters.attach_trainer(noting(folder, max_steps=4))
    return text.getvalue(), error_of(lambda: trained(again, resume_from_checkpoint=True))


def column(folder: str, column: str) -> tuple[Any, Any]:
    """The costs of our loader, and the column of lengths that the trainer removes."""
    lengths: list[Any] = Texts().lengths
    values = lengths if column == "length" else [[n] for n in lengths]
    data = as_rows(96, **{column: values})
    made = noting(folder, data)
    loader = make_loader(made, made.get_train_dataloader, "auto", None)
    assert column not in loader.dataset.column_names
    return loader.cost["tokens"].tolist(), lengths


class Written(Dataset[Any]):
    """Texts of words, of which a collator makes tokens."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": " ".join(f"w{n}" for n in Texts()[index]["input_ids"].tolist())}


def collate_words(samples: list[Any]) -> Any:
    """Collate as collators with a processor do: texts become tokens here."""
    words = (sample["text"].split() for sample in samples)
    batch = collate([{"input_ids": torch.tensor([int(w[1:]) for w in row])} for row in words])
    return {**batch, "attention_mask": batch["labels"].ne(-100).long()}


def collated(folder: str) -> tuple[list[int], list[int], str, tuple[int, int]]:
    """Costs found in batches, the lengths, what is said, and padded tokens, attached and not."""
    text, named = io.StringIO(), {"remove_unused_columns": False, "data_collator": collate_words}
    ours, theirs = (noting(folder, Written(), Counting, **named) for _ in range(2))
    with redirect_stderr(text):
        trained(cp.adapters.attach_trainer(ours))
        trained(theirs)
    loader = make_loader(theirs, theirs.get_train_dataloader, "auto", None)
    costs = [loader.cost(loader.dataset[k])["tokens"] for k in range(96)]
    return costs, Texts().lengths, text.getvalue(), (ours.padded, theirs.padded)


class Own(Noting):
    """Its loss is a mean over the microbatch."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return super().compute_loss(model, inputs)


def loss_found(folder: str, kind: str) -> tuple[str, str, set[int]]:
    """The counts of the loader, what is said, and the counts of microbatches."""
    text = io.StringIO()
    made = noting(folder, kind=Own if kind == "own mean" else Noting)
    if kind == "switched off":
        made.model_accepts_loss_kwargs = False
    with redirect_stderr(text):
        trained(cp.adapters.attach_trainer(made))
    (loader,) = loaders_of(made)
    return loader._late.counts, text.getvalue(), {len(batch) for _, batch in made.seen}


def on_mesh(folder: str) -> tuple[list[list[int]], str]:
    """The samples of a process that shares them with its neighbour; an error without workers."""
    made, none = noting(folder, dataloader_num_workers=1), noting(folder)
    made.accelerator.state.device_mesh = init_device_mesh(
        "cpu", (1, 2), mesh_dim_names=("dp_shard", "tp")
    )
    try:
        for each in (made, none):
            each.get_tp_size = lambda: 2
        error = error_of(lambda: cp.adapters.attach_trainer(none))
        KEPT.append(make_loader(made, made.get_train_dataloader, "auto", None))
        return [*map(numbers_of, KEPT[-1])], error
    finally:
        made.accelerator.state.device_mesh = None


class BatchSamplerShard:
    """Deals indices out as that of ms-swift 4.6 does, which is not installed here; one rank."""

    def __init__(self, total: int) -> None:
        self.total, self.batch_size, self.shuffle, self.drop_last = total, 4, True, True
        self.base_seed, self.group_by_length, self.epoch = 11, False, 0

    def __len__(self) -> int:
        return self.total // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        numbers = torch.Generator().manual_seed(self.base_seed)
        order = torch.randperm(self.total, generator=numbers).tolist()
        return (order[at : at + 4] for at in range(0, self.total - 3, 4))


class DataLoaderShard(DataLoader[Any]):
    """ms-swift's, which moves batches to a device."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


for swifts in (BatchSamplerShard, DataLoaderShard):
    swifts.__module__ = "swift.dataloader.shard"


def swift(folder: str) -> tuple[Any, Any, Any]:
    """The samples of each step of an epoch by our loader and by ms-swift's; two fields."""
    made = noting(folder, kind=Odd)
    data = as_rows().remove_columns(["note"])
    made.loader = lambda: DataLoaderShard(
        data, batch_sampler=BatchSamplerShard(96), collate_fn=collate_lists
    )
    loader = make_loader(made, made.get_train_dataloader, "auto", None)
    theirs = [*map(numbers_of, made.loader())]
    ours = [*map(numbers_of, loader)]
    return [*map(sorted, ours)], [*map(sorted, theirs)], (loader.batch_size, loader.drop_last)


def quiet(kind: type, folder: str, **named: Any) -> Any:
    """Return the configuration of a trainer of TRL."""
    return kind(
        folder, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, optim="sgd",
        learning_rate=0.1, lr_scheduler_type="constant", per_device_train_batch_size=4, seed=7,
        gradient_accumulation_steps=2, save_strategy="no", logging_steps=1, max_steps=6,
        gradient_checkpointing=False, **named,
    )  # fmt: skip


def losses_of(made: Any) -> list[float]:
    return [log["loss"] for log in trained(made).state.log_history if "loss" in log]


def sft(folder: str) -> tuple[list[float], list[float]]:
    """The losses of SFTTrainer, attached and not."""
    data = as_rows().remove_columns(["note", "labels"])
    ours, theirs = (
        SFTTrainer(
            model(), quiet(SFTConfig, folder), processing_class=tokenizer(), train_dataset=data
        )
        for _ in range(2)
    )
    return losses_of(cp.adapters.attach_trainer(ours)), losses_of(theirs)


def dpo(folder: str) -> Any:
    """Shapes and losses of DPOTrainer, attached and not; counts, costs, lengths, what is said."""
    words = [Written()[k]["text"] for k in range(96)]
    data = Rows.from_dict(
        {"prompt": words, "chosen": words[1:] + words[:1], "rejected": words[2:] + words[:2]}
    )
    shapes: dict[str, list[tuple[int, int]]] = {"ours": [], "theirs": []}
    losses, text = {}, io.StringIO()
    for name, seen in shapes.items():
        torch.manual_seed(3)

        class Shown(DPOTrainer):
            def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
                seen.append(tuple(inputs["input_ids"].shape))  # noqa: B023
                return super().training_step(model, inputs, *args, **named)

        made = Shown(
            model(), model(), quiet(DPOConfig, folder, max_length=None),
            processing_class=tokenizer(), train_dataset=data,
        )  # fmt: skip
        with redirect_stderr(text):
            if name == "ours":
                cp.adapters.attach_trainer(made)
            losses[name] = losses_of(made)
        if name == "ours":
            (loader,) = loaders_of(made)
            counts, rows = loader._late.counts, [loader.dataset[k] for k in range(96)]
            costs = [loader.cost(row)["tokens"] for row in rows]
            lengths = [
                2
                * (
                    len(row["prompt_ids"])
                    + max(len(row[f"{n}_ids"]) for n in ("chosen", "rejected"))
                )
                for row in rows
            ]
    return shapes, counts, costs, lengths, losses, text.getvalue()
