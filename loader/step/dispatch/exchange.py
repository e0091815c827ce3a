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

    `group`: the ranks, by default all, which call all methods in one order. Each raises LoaderError
    if a rank does not come within the group's timeout; NCCL ends the process then.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.ranks = 0, 1
        if has_process_group():
            self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"this process has global rank {dist.get_rank()} and is not in the group: give "
                "the group of the ranks that share images, on those ranks only"
            )

    def gather(self, local: Any, subject: str) -> list[Any]:
        """Return a small object of every rank."""
        objects = [local] * self.ranks
        self._run(subject, dist.all_gather_object, objects, local)
        return objects

    def swap(
        self, tensor: Tensor, send: Sequence[int], receive: Sequence[int], subject: str
    ) -> Tensor:
        """Send rows to each rank, return what each rank sent here, both in the ranks' order."""
        if self.ranks == 1:
            return tensor
        received = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        # Bytes, since backends do not know all precisions.
        width = prod(tensor.shape[1:]) * tensor.element_size()
        into, sent = (side.view(-1).view(torch.uint8) for side in (received, tensor.contiguous()))
        sizes = [[width * rows for rows in side] for side in (receive, send)]
        self._run(subject, dist.all_to_all_single, into, sent, *sizes)
        return received

    def add_up(self, tensors: Sequence[Tensor], subject: str) -> None:
        """Sum tensors over the ranks, in place, those of one precision in one message."""
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            self._run(subject, dist.all_reduce, flat)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def copy_values(self, tensors: Sequence[Tensor], subject: str) -> None:
        """Give every rank the values of the first one."""
        for tensor in tensors:
            self._run(subject, dist.broadcast, tensor, group_src=0)

    def _run(self, subject: str, collective: Callable[..., Any], *args: Any, **named: Any) -> None:
        if self.ranks == 1:
            return
        try:
            collective(*args, group=self._group, **named)
        except RuntimeError as error:
            raise LoaderError(
                f"rank {self.rank} of {self.ranks} did not get {subject}: a rank has ended, is "
                "stopped, or has left out a step(), features() or backward() of the others "
                f"({str(error).splitlines()[0]})"
            ) from error
