"""Makes accelerate's gather_for_metrics take microbatches of different sizes.

Its collective needs tensors of one shape on all ranks, and ends the process (gloo) or hangs (NCCL)
where they differ, as the microbatches of a balanced loader do. While a balanced loader is being
iterated over, and between loops where one is prepared, tensors are padded in their first dimension
to the longest, gathered, and cut again. With any other loader accelerate's own function runs.
"""

import functools
import zlib
from typing import Any

import torch

MOST_DIMENSIONS = 16


def gather_padded() -> None:
    """Replace Accelerator.gather_for_metrics, once in a process."""
    from accelerate import Accelerator

    if not hasattr(Accelerator.gather_for_metrics, "padded"):
        Accelerator.gather_for_metrics = _wrapped(Accelerator.gather_for_metrics)


def _wrapped(gather: Any) -> Any:
    @functools.wraps(gather)
    def gather_for_metrics(
        accelerator: Any, input_data: Any, use_gather_object: bool = False
    ) -> Any:
        if use_gather_object or accelerator.num_processes == 1 or not _planned_for(accelerator):
            return gather(accelerator, input_data, use_gather_object)
        from accelerate.utils import recursively_apply
        from accelerate.utils.operations import gather_object

        try:
            return recursively_apply(
                lambda tensor: _gather(accelerator, tensor), input_data, error_on_other_type=True
            )
        except TypeError:  # not all of it is tensors
            return gather_object(input_data)

    gather_for_metrics.padded = True  # type: ignore[attr-defined]
    return gather_for_metrics


def is_planned(loader: Any) -> bool:
    """Return whether a loader is one of ours, with balance."""
    return getattr(loader, "is_balanced", False)


def _planned_for(accelerator: Any) -> bool:
    """Return whether the batches are a balanced loader's; between loops, whether it has one."""
    active = accelerator.gradient_state.active_dataloader
    if active is not None:
        return is_planned(active)
    return any(is_planned(loader) for loader in accelerator._dataloaders)


def _gather(accelerator: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Return the ranks' tensors one after the other; ValueError if they differ in other sizes."""
    if tensor.dim() == 0:
        return accelerator.gather(tensor)  # type: ignore[no-any-return]
    kind = [zlib.crc32(str(tensor.dtype).encode()), tensor.dim(), *tensor.shape]
    row = torch.zeros(1, 2 + MOST_DIMENSIONS, dtype=torch.int64, device=tensor.device)
    row[0, : len(kind)] = torch.tensor(kind)
    rows = accelerator.gather(row).tolist()
    if len({(*row[:2], *row[3:]) for row in rows}) > 1:
        sizes = [row[2 : 2 + row[1]] for row in rows]
        raise ValueError(
            f"gather_for_metrics was given tensors of sizes {sizes} by the ranks, here of "
            f"{tensor.dtype}: microbatches of a balanced loader may differ in the first dimension "
            "only; pad others before, with accelerator.pad_across_processes(tensor, dim=1), and "
            "give the dtype where a tensor may be empty"
        )
    lengths = [row[2] for row in rows]
    padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    if not max(lengths):
        return padded
    parts = accelerator.gather(padded).split(max(lengths))
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
