"""Makes the loader that a Trainer would have made, as one of ours.

Trainer.get_train_dataloader() is called as the trainer's class has it, while accelerator.prepare
returns what it gets: so columns, collator, order and workers are those of the class and of its
arguments, whatever it overrides. Nothing iterates over that loader; ours takes its fields.
"""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ...balancer.planning.problem.balance import DEFAULTS, as_balance
from ...balancer.planning.problem.options import LLM
from ...workers.discovery import FIRST
from ...workers.sources.randomness import global_randomness
from .recognition import RecognisedLoader

# Fields of torch's loader that ours has as they are.
TAKEN = (
    "batch_size", "collate_fn", "num_workers", "pin_memory", "drop_last", "timeout",
    "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers",
    "pin_memory_device", "in_order",
)  # fmt: skip
# Arguments of TRL, Axolotl and ms-swift by which samples are joined before they are balanced.
PACKING = ("packing", "sample_packing", "padding_free")
IDS, MASK = "input_ids", "attention_mask"
# The column of ms-swift, whatever length_column_name says: of each sample a list of lengths.
SWIFT_LENGTHS = "lengths"
SWIFT_SHARD = "swift.dataloader.shard"
LEAVE = "or leave attach_trainer(): Trainer's own loader goes on"


def make_loader(trainer: Any, get_loader: Callable[[], Any], balance: Any, cost: Any) -> Any:
    """Return a loader of ours with the fields of the one that a trainer makes.

    get_loader: its get_train_dataloader. balance, cost: as in DataLoader; where cost is None, a
    column of lengths, or what collating a sample alone shows. A stream is read without balance.
    Raises ValueError for packing, samplers, streams and ranks that no plan follows.
    """
    _refuse_packing(trainer)
    theirs = _read_loader(trainer, get_loader)
    # by name: the package of the loaders imports this one
    loader_class = importlib.import_module("..dataloader", __package__).DataLoader
    fields: dict[str, Any] = {name: getattr(theirs, name) for name in TAKEN}
    if isinstance(theirs.dataset, IterableDataset):
        _check_stream(trainer, theirs.dataset)
        return loader_class(theirs.dataset, cost=cost, **fields)
    (order, seed), ranks = _read_order(theirs, trainer), find_ranks(trainer)
    fields |= order
    if balance is None:
        if ranks is not None:
            raise ValueError(
                "balance=None has accelerate share the batches out, which knows nothing of tp and "
                f'cp here: give balance="auto", {LEAVE}'
            )
        return loader_class(theirs.dataset, cost=cost, **fields)
    if ranks is not None and not theirs.num_workers:
        raise ValueError(
            "processes that share samples share the workers that load them, and there are none: "
            "give TrainingArguments(dataloader_num_workers=1), or more"
        )
    balance = as_balance(balance)
    if balance.seed == DEFAULTS.seed:
        balance = replace(balance, seed=seed)
    if cost is None:
        cost = _find_cost(trainer, theirs)
    return loader_class(theirs.dataset, balance=balance, cost=cost, ranks=ranks, **fields)


def _refuse_packing(trainer: Any) -> None:
    """Raise ValueError where samples are to be joined; nothing of the trainer is called before."""
    for name in PACKING:
        if getattr(trainer.args, name, False) or getattr(trainer, name, False):
            raise ValueError(
                f"{name}=True joins samples, and a balanced loader deals them out one by one: "
                f"leave {name} in the trainer's arguments, {LEAVE}"
            )


def _read_loader(trainer: Any, get_loader: Callable[[], Any]) -> TorchLoader[Any]:
    """Return the loader that a trainer makes, before accelerate has prepared it."""
    accelerator = trainer.accelerator
    before = vars(accelerator).get("prepare")
    accelerator.prepare = lambda loader, **_: loader
    try:
        loader: Any = get_loader()
    finally:
        del accelerator.prepare
        if before is not None:
            accelerator.prepare = before
    kind = type(loader)
    if isinstance(loader, RecognisedLoader):
        raise ValueError(
            "get_train_dataloader() returns a counterpoise.DataLoader already: call "
            "attach_trainer() once, or give it that loader"
        )
    is_read = isinstance(loader, TorchLoader) and (
        kind.__iter__ is TorchLoader.__iter__ or kind.__module__ == SWIFT_SHARD
    )
    if not is_read:
        raise ValueError(
            f"{type(trainer).__name__}.get_train_dataloader() returns a {kind.__module__}."
            f"{kind.__qualname__}, and what that does to batches is not known: give a loader, "
            f"attach_trainer(trainer, cp.DataLoader(...)), {LEAVE}"
        )
    theirs: TorchLoader[Any] = loader
    return theirs


def _check_stream(trainer: Any, stream: Any) -> None:
    # `split_dataset_by_node` leaves its mark in a stream of datasets
    if trainer.args.world_size > 1 and getattr(stream, "_distributed", None) is None:
        raise ValueError(
            f"train_dataset is a stream ({type(stream).__name__}), which each of "
            f"{trainer.args.world_size} ranks would read as a whole: give "
            "datasets.distributed.split_dataset_by_node(stream, rank, ranks), or a data set with "
            f"len(), {LEAVE}"
        )


def _read_order(theirs: TorchLoader[Any], trainer: Any) -> tuple[dict[str, Any], int]:
    """Return the fields that samplers say, and the seed; ValueError, with its name, for others."""
    args, batches = trainer.args, theirs.batch_sampler
    sampler: Any = theirs.sampler if type(batches) is BatchSampler else batches
    kind = type(sampler)
    seed = args.seed if args.data_seed is None else args.data_seed
    if kind is SequentialSampler or (
        kind is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(theirs.dataset)  # type: ignore[arg-type]
    ):
        return {"shuffle": kind is RandomSampler}, seed
    if kind.__module__ == SWIFT_SHARD and not sampler.group_by_length:
        said = {name: getattr(sampler, name) for name in ("shuffle", "batch_size", "drop_last")}
        return said, sampler.base_seed
    raise ValueError(
        f"{type(trainer).__name__} draws its samples by a {kind.__name__}, and a balanced loader "
        "takes the place of a RandomSampler or a SequentialSampler over the whole data set: leave "
        f"the setting that asks for it, {LEAVE}"
    )


def find_ranks(trainer: Any) -> Any:
    """Return what says this process' data-parallel rank; None for torch.distributed's.

    ValueError where processes share samples, and it is not known which.
    """
    args, accelerator = trainer.args, trainer.accelerator
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs in one process are torch's DataParallel, which cuts each batch "
            f"into parts of equal counts: start a process for each, torchrun --nproc-per-node "
            f"{args.n_gpu}, {LEAVE}"
        )
    config = getattr(accelerator, "parallelism_config", None)
    sizes = {name: getattr(config, f"{name}_size", 1) for name in ("cp", "sp")}
    sizes["tp"] = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
    shared = {name: size for name, size in sizes.items() if size > 1}
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if not shared:
        return None
    if getattr(mesh, "mesh_dim_names", None) and "sp" not in shared:
        return mesh
    if [*shared] == ["tp"] and args.world_size % shared["tp"] == 0:  # neighbours share samples
        return {"dp": args.world_size // shared["tp"], "tp": shared["tp"]}
    words = ", ".join(f"{name}={size}" for name, size in shared.items())
    raise ValueError(
        f"processes share samples by {words}, and nothing here says which they are: give a loader "
        f"that knows, cp.DataLoader(..., ranks=mesh), {LEAVE}"
    )


def _find_cost(trainer: Any, theirs: TorchLoader[Any]) -> Any:
    """Return the costs that a column of lengths says, or how collating shows them; else None.

    None leaves them to balance="auto": samples with token ids say themselves what they cost.
    """
    dataset: Any = theirs.dataset
    makes_ids = IDS not in _column_names(dataset) and _makes_ids(theirs)
    name, lengths = _read_lengths(trainer, len(dataset))
    if lengths is not None:
        _check_lengths(theirs, name, lengths, makes_ids)
        return {LLM: lengths}
    return CollatedCost(theirs.collate_fn) if makes_ids else None


def _column_names(dataset: Any) -> Sequence[str]:
    names: Sequence[str] = getattr(dataset, "column_names", None) or ()
    return names


def _makes_ids(theirs: TorchLoader[Any]) -> bool:
    """Return whether the collator makes token ids of samples that have none."""
    with global_randomness(0, 0, "collate"):
        sample: Any = theirs.dataset[0]
        has_ids = isinstance(sample, Mapping) and IDS in sample
        batch = None if has_ids else theirs.collate_fn([copy.deepcopy(sample)])
    return isinstance(batch, Mapping) and IDS in batch


def _read_lengths(trainer: Any, count: int) -> tuple[str, Any]:
    """Return the name of the column of lengths, and its integers (n,); None without one.

    It is read before columns go that the model does not take.
    """
    dataset = trainer.train_dataset
    fields = getattr(dataset, "__dict__", {})  # a list has none
    inner: Any = dataset if _column_names(dataset) else fields.get("dataset")
    asked = (getattr(trainer.args, "length_column_name", None), SWIFT_LENGTHS)
    for name in filter(None, asked):
        if name in _column_names(inner) and len(inner) == count:
            rows = ([row] if np.ndim(row) == 0 else row for row in inner[name])
            return name, np.array([max(row) for row in rows])
    return "", None


def _check_lengths(theirs: TorchLoader[Any], name: str, lengths: Any, makes_ids: bool) -> None:
    """Raise ValueError where a column of lengths disagrees with one of the first samples.

    A sample that has no token ids is compared with its batch.
    """
    dataset: Any = theirs.dataset
    sizes = dict[int, int]()
    for index in range(min(FIRST, len(lengths))):
        with global_randomness(0, 0, str(index)):
            sample = dataset[index]
            if makes_ids:
                sizes[index] = measure_rows(theirs.collate_fn([copy.deepcopy(sample)]))[1]
            elif isinstance(sample, Mapping) and IDS in sample:
                sizes[index] = len(sample[IDS])
    cut = max(sizes.values(), default=0)  # where long samples are cut
    for index, size in sizes.items():
        if size != lengths[index] and not (size == cut < lengths[index]):
            raise ValueError(
                f"column {name!r} of train_dataset says {lengths[index]} for sample {index}, and "
                f"it has {size} tokens: make the column again, remove it, or give "
                "attach_trainer(trainer, cost=...)"
            )


def measure_rows(batch: Mapping[str, Any]) -> tuple[int, int]:
    """Return a batch's rows, and the tokens of the longest.

    >>> measure_rows({"input_ids": torch.zeros(2, 8), "attention_mask": torch.ones(2, 5)})
    (2, 8)
    """
    ids, mask = batch[IDS], batch.get(MASK)
    if mask is not None and mask.shape == ids.shape:
        return len(ids), int(mask.sum(-1).max())
    return len(ids), ids.shape[-1]


@dataclass(frozen=True, slots=True)
class CollatedCost:
    """What a sample costs, as its batch shows: rows x the longest, and elements of other inputs.

    A pair of a preference data set is two rows.
    """

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> dict[str, int]:
        """Return the costs of a sample, which is left as it is."""
        with global_randomness(0, 0, "collate"):
            batch = self.collate_fn([copy.deepcopy(sample)])
        rows, longest = measure_rows(batch)
        costs = {LLM: rows * longest}
        for name, value in batch.items():  # pixels and sounds
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                costs[name] = value.numel()
        return costs
