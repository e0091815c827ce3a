"""Fits loaders into accelerate: `prepare_accelerate`, and what its own loaders do for it.

accelerate itself leaves a balanced loader alone and makes torch's of a plain one. Here a plain
loader is sharded by accelerate's own BatchSamplerShard, and read by our workers.

accelerate reads from its GradientState which loader is being iterated over, and whether this is its
last batch (gradients are synchronised then), and puts batches onto its device: an `AccelerateFeed`
does this for a balanced loader once accelerator.prepare has set `_is_accelerate_prepared`.

Its gather_for_metrics needs tensors of one shape on all ranks, and ends the process (gloo) or hangs
(NCCL) where they differ, as the microbatches of a balanced loader do. While such a loader is being
iterated over, and between loops where one is prepared, each rank gets the others' as they are.
"""

import functools
import logging
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader, IterableDataset

from ...balancer.planning.problem.layout import find_base
from ...workers.collate.layouts import collate_packed
from ..models.kwargs import check_length, is_packed
from ..models.proof import SEEN, check_packing
from ..step.accumulation import check_accumulation

logger = logging.getLogger(__name__)
NO_MODEL = (
    "batches are packed, and this accelerator has prepared no model: whether yours keeps samples "
    "apart is not proved; give it to accelerator.prepare(), or ask cp.check_equivalence"
)
ACCUMULATION = "gradient_accumulation_steps"
# The arguments of a loader that stay as they are when accelerate shards its batch sampler.
KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
    "pin_memory_device", "in_order", "on_error", "growing_data", "keep_stats",
)  # fmt: skip


def prepare_accelerate(accelerator: Any, loader: Any) -> Any:
    """Return the loader as accelerator.prepare would, with our workers also where it is plain.

    A balanced loader is returned as it is; its microbatches are placed on accelerator.device, its
    accumulate is compared with gradient_accumulation_steps, and save_state has its ledger. A plain
    one becomes an accelerate DataLoaderShard around one of ours. torch's DataLoader over a
    BalancedBatchSampler is not sharded again. Where batches are packed, the models that the
    accelerator has prepared are checked: now, and at the first batch of a balanced loader. That the
    loop gives them cp.hf_kwargs(batch, model) is not seen here.

    Raises ValueError for other loaders, for options of the accelerator that would take batches
    apart (dispatch_batches, split_batches), and for a model that mixes packed samples.
    """
    sampler, is_ours = getattr(loader, "batch_sampler", None), hasattr(loader, "is_balanced")
    planned = isinstance(loader, TorchLoader) and getattr(sampler, "is_planned", False)
    if not is_ours and not planned:
        raise ValueError(
            f"prepare_accelerate takes a counterpoise.DataLoader, or a DataLoader over a "
            f"BalancedBatchSampler, got {type(loader)}: give others to accelerator.prepare()"
        )
    refuse_one_reader(accelerator)
    if is_ours and is_packing(loader) and not (loader.is_balanced and not accelerator._models):
        check_models(accelerator)  # a balanced one shows its batches, and asks again
    # planned over all ranks already: nothing is left to be sharded
    if is_ours and loader.is_balanced:
        gather_of_any_size()
        adopt_loop(loader, accelerator.gradient_accumulation_steps)
        device = accelerator.device if accelerator.device_placement else None
        loader._accelerate = AccelerateFeed(device, accelerator.non_blocking, accelerator)
        if not any(loader is prepared for prepared in accelerator._dataloaders):
            accelerator._dataloaders.append(loader)
        return loader
    if planned:  # its batch sampler has this rank's part only
        prepared = _shard(accelerator, loader, processes=1)
    elif isinstance(loader.dataset, IterableDataset) and accelerator.num_processes > 1:
        raise ValueError(
            "an IterableDataset has no samples to share out between the ranks: use "
            "accelerator.prepare(loader), which makes it torch's, or a dataset that shares itself "
            "out, without either"
        )
    else:
        prepared = _with_our_workers(_shard(accelerator, loader), loader)
    prepared._is_accelerate_prepared = True
    accelerator._dataloaders.append(prepared)
    return prepared


def is_packing(loader: Any) -> bool:
    """Return whether a loader's batches are known to be packed before the first one."""
    arguments = getattr(loader, "_arguments", None)
    return loader.collate_fn is collate_packed or (
        arguments is not None and find_base(arguments.balance.layout) == "packed"
    )


def check_models(accelerator: Any, images: bool = False) -> None:
    """Raise ValueError where a model that the accelerator has prepared mixes packed samples."""
    for model in accelerator._models:
        check_packing(model, images)
    if not accelerator._models:
        logger.warning(NO_MODEL)


def refuse_one_reader(accelerator: Any) -> None:
    """Raise ValueError for options by which one process reads for all."""
    for name in ("dispatch_batches", "split_batches"):
        if getattr(accelerator, name):
            raise ValueError(
                f"{name}=True makes one process read for all, and the loader has workers and a "
                f"part of the samples on every rank: leave {name} of DataLoaderConfiguration, or "
                "give torch's DataLoader to accelerator.prepare()"
            )


def _shard(accelerator: Any, loader: Any, processes: int | None = None) -> Any:
    """Return what accelerate makes of a loader; for one process it is not sharded."""
    from accelerate.data_loader import prepare_data_loader

    return prepare_data_loader(
        loader, accelerator.device, num_processes=processes or accelerator.num_processes,
        process_index=0 if processes else accelerator.process_index,
        put_on_device=accelerator.device_placement, rng_types=accelerator.rng_types.copy(),
        dispatch_batches=False, even_batches=accelerator.even_batches,
        use_seedable_sampler=accelerator.use_seedable_sampler and not processes,
        data_seed=accelerator.dataloader_config.data_seed, non_blocking=accelerator.non_blocking,
    )  # fmt: skip


def _with_our_workers(shard: Any, loader: Any) -> Any:
    """Put a loader of ours behind a DataLoaderShard; its state becomes what is saved."""
    options: dict[str, Any] = {name: getattr(loader, name) for name in KEPT}
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        options["batch_sampler"] = shard.batch_sampler
    shard.base_dataloader = type(loader)(loader.dataset, **options)
    loader._stats = shard.base_dataloader._stats  # what is asked of the one is counted by the other
    shard.use_stateful_dataloader = True
    # Its own corrects torchdata's counts of batches; of ours a state is of what was handed out.
    shard._update_state_dict = functools.partial(_keep_state, shard)
    shard.state_dict = functools.partial(_kept_state, shard)
    shard.load_state_dict = functools.partial(_load_state, shard.base_dataloader)
    _keep_state(shard)
    return shard


def _keep_state(shard: Any) -> None:
    """Keep the state for a batch that the shard, one batch ahead, hands out next."""
    try:
        shard.dl_state_dict = shard.base_dataloader.state_dict()
        shard.dl_state_dict["_iterator_finished"] = shard.end_of_dataloader
    except Exception as error:  # of a data set or a sampler: the state is not asked for yet
        shard.dl_state_dict = error


def _kept_state(shard: Any) -> dict[str, Any]:
    if isinstance(state := shard.dl_state_dict, Exception):
        raise state
    ledger: dict[str, Any] = state
    return ledger


def _load_state(loader: Any, state: dict[str, Any]) -> None:
    """Load a state without what DataLoaderShard writes into it."""
    loader.load_state_dict({k: v for k, v in state.items() if k != "_iterator_finished"})


def adopt_loop(loader: Any, num_steps: int) -> None:
    """Plan for a loop of accelerate: as many microbatches a step, and when its ranks meet.

    num_steps: the batches that it accumulates; 1 does not say when ranks meet. Only balance="auto"
    takes the number of microbatches, unless the user has said it.
    """
    loader._late.adopt(accumulate=num_steps)
    if num_steps > 1 and meets_once_a_step():
        loader._late.adopt_waits("step")


def feed_prepared(loader: Any) -> None:
    """Do for a balanced loader what accelerate's own do: plain accelerator.prepare was given it."""
    from accelerate import PartialState
    from accelerate.state import GradientState

    gather_of_any_size()
    loader._accelerate = AccelerateFeed(PartialState().device)
    adopt_loop(loader, int(GradientState().num_steps))


class AccelerateFeed:
    """Tells accelerate about a balanced loader's batches, and places them.

    `loader` is referred to weakly by accelerate: it gets the attributes end_of_dataloader and
    remainder, which GradientState reads. device: where batches go; None leaves them. accelerator:
    whose models are checked at the first packed batch of an iteration, and the first with images.
    """

    def __init__(self, device: Any, non_blocking: bool = False, accelerator: Any = None) -> None:
        self.device = device
        self.non_blocking = non_blocking
        self.accelerator = accelerator
        self._checked: set[bool] = set()

    def begin(self, loader: Any, accumulate: int | str) -> None:
        """Begin an iteration; ValueError if accelerate accumulates another number of batches.

        accumulate: the microbatches that this process has in a step; "auto" if steps differ.
        """
        from accelerate.state import GradientState

        self._checked.clear()
        state = GradientState()
        check_accumulation(accumulate, state.num_steps, ACCUMULATION, several=True)
        loader.end_of_dataloader, loader.remainder = False, 0
        state._add_dataloader(loader)

    def place(self, batch: Any) -> Any:
        """Return a batch on the device; the same object where all of it is there already.

        ValueError for a packed batch where a model mixes samples, or that is too long for it.
        """
        images = isinstance(batch, dict) and not SEEN.isdisjoint(batch)
        if self.accelerator is not None and is_packed(batch):
            if images not in self._checked:
                check_models(self.accelerator, images)
                self._checked.add(images)
            for model in self.accelerator._models:
                check_length(batch, model)
        if self.device is None or is_there(batch, self.device):
            return batch
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.device, non_blocking=self.non_blocking)

    def end(self, loader: Any) -> None:
        """End the iteration that `begin` began; nothing happens when the interpreter ends."""
        state = sys.modules.get("accelerate.state")
        if state is not None and not sys.is_finalizing():
            state.GradientState()._remove_dataloader(loader)


def meets_once_a_step() -> bool:
    """Return whether accelerate's ranks exchange nothing before the last batch that accumulates.

    So it is under DDP, whose names begin with MULTI_. FSDP gathers parameters in every batch, and
    of DeepSpeed and others nothing is known here.
    """
    from accelerate.state import GradientState, PartialState

    syncs_each = GradientState().plugin_kwargs.get("sync_each_batch", False)
    return not syncs_each and PartialState().distributed_type.value.startswith("MULTI_")


def is_there(batch: Any, device: Any) -> bool:
    """Return whether every tensor of a batch is on a device already."""
    if isinstance(batch, dict):
        return all(is_there(field, device) for field in batch.values())
    if isinstance(batch, list | tuple):
        return all(is_there(part, device) for part in batch)
    where = getattr(batch, "device", device)
    return where.type == device.type and device.index in (None, where.index)


def is_planned(loader: Any) -> bool:
    """Return whether a loader is one of ours, with balance."""
    return getattr(loader, "is_balanced", False)


def gather_of_any_size() -> None:
    """Replace Accelerator.gather_for_metrics, once in a process."""
    from accelerate import Accelerator
    from accelerate.utils import recursively_apply
    from accelerate.utils.operations import gather_object

    gather: Any = Accelerator.gather_for_metrics
    if hasattr(gather, "of_any_size"):
        return

    @functools.wraps(gather)
    def gather_for_metrics(
        accelerator: Any, input_data: Any, use_gather_object: bool = False
    ) -> Any:
        active = accelerator.gradient_state.active_dataloader
        is_ours = any(map(is_planned, [active] if active is not None else accelerator._dataloaders))
        if use_gather_object or accelerator.num_processes == 1 or not is_ours:
            return gather(accelerator, input_data, use_gather_object)
        try:
            return recursively_apply(_gather, input_data, error_on_other_type=True)
        except TypeError:  # not all of it is tensors
            return gather_object(input_data)

    def _gather(tensor: torch.Tensor) -> torch.Tensor:
        parts = gather_object([tensor.detach().cpu().reshape(tensor.shape or (1,))])
        if len({(part.dtype, part.shape[1:]) for part in parts}) > 1:
            shapes = ", ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts)
            raise ValueError(
                f"gather_for_metrics was given tensors {shapes} by the ranks: microbatches of a "
                "balanced loader may differ in the first dimension only; pad others before, with "
                "accelerator.pad_across_processes(tensor, dim=1), and give the dtype where a "
                "tensor may be empty"
            )
        return torch.cat(parts).to(tensor.device)

    gather_for_metrics.of_any_size = True  # type: ignore[attr-defined]
    Accelerator.gather_for_metrics = gather_for_metrics
