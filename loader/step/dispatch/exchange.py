"""Exchanges between the ranks that share images: sizes, rows of tensors, sums of gradients."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import LoaderError
from ..ranks import has_process_group


class Exchange:
    """The connections of one rank to the others; without torch.distributed it is alone.

    `group`: a ProcessGroup, or None for all ranks; they call all methods in one order. If a rank is
    late, NCCL ends the process; other backends raise LoaderError, which names what is `awaited`.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.rank_count = 0, 1
        if has_process_group():
            self.rank, self.rank_count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"this process has global rank {dist.get_rank()} and is not in the group: give "
                "the group of the ranks that share images, on those ranks only"
            )

    def gather(self, local: Any, awaited: str) -> list[Any]:
        """Return each rank's object, a small one, in the ranks' order."""
        objects = [local] * self.rank_count
        self._run(awaited, dist.all_gather_object, objects, local)
        return objects

    def swap(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], awaited: str
    ) -> Tensor:
        """Send rows to each rank, return those that each sent here; both counts are by rank."""
        if self.rank_count == 1:
            return rows
        received = rows.new_empty((sum(receive_counts), *rows.shape[1:]))
        # Bytes, since backends do not know all precisions.
        row_bytes = prod(rows.shape[1:]) * rows.element_size()
        flat = [tensor.view(-1).view(torch.uint8) for tensor in (received, rows.contiguous())]
        sizes = [[row_bytes * n for n in counts] for counts in (receive_counts, send_counts)]
        self._run(awaited, dist.all_to_all_single, *flat, *sizes)
        return received

    def add_up(self, tensors: Sequence[Tensor], awaited: str) -> None:
        """Sum tensors over the ranks, in place, those of one precision in one message."""
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            self._run(awaited, dist.all_reduce, flat)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def copy_values(self, tensors: Sequence[Tensor], awaited: str) -> None:
        """Give every rank the values of the first one."""
        for tensor in tensors:
            self._run(awaited, dist.broadcast, tensor, group_src=0)

    def _run(self, awaited: str, collective: Callable[..., Any], *args: Any, **named: Any) -> None:
        if self.rank_count == 1:
            return
        try:
            collective(*args, group=self._group, **named)
        except RuntimeError as error:
            raise LoaderError(
                f"rank {self.rank} of {self.rank_count} did not get {awaited}: a rank has ended, "
                "is stopped, or has left out a step(), features() or backward() of the others "
                f"({str(error).splitlines()[0]})"
            ) from error
