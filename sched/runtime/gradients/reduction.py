"""Sum gradients over ranks with the same parameters, in buckets, beside the passes that still run.

Microbatches are weighted with the whole step's counts, so the plain sum over all ranks is the
gradient of the step's loss: nothing is divided here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..links import wait_for
from .divided import gradient_of, settle

_BUCKET_BYTES = 32 << 20


@dataclass(slots=True)
class _Bucket:
    """Gradients that are reduced as one tensor."""

    gradients: list[Tensor]
    flat: Tensor
    work: dist.Work


@dataclass(slots=True)
class Reduction:
    """The reductions of one step. `group`: of the ranks with the same parameters, None for one."""

    group: dist.ProcessGroup | None
    _buckets: list[_Bucket] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def start(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start to reduce gradients; a parameter is reduced once a step.

        A trained parameter without a gradient contributes zeros, since others may have one.
        """
        if self.group is None or self.group.size() == 1:
            return
        new = []
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                new.append(parameter)
        settle(new)
        for bucket in _fill(new):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self._buckets.append(_Bucket(bucket, flat, work))

    def finish(self, deadline_s: float) -> None:
        """Wait for all reductions, and put the sums into `.grad`. Raises RuntimeError."""
        buckets, self._buckets = self._buckets, []
        self._seen.clear()
        for bucket in buckets:
            wait_for(bucket.work, bucket.flat, deadline_s)
            sizes = [gradient.numel() for gradient in bucket.gradients]
            for gradient, part in zip(
                bucket.gradients, torch.split(bucket.flat, sizes), strict=True
            ):
                gradient.copy_(part.view_as(gradient))


def _fill(parameters: Iterable[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Yield lists of gradients of one precision, each list up to the size of a bucket."""
    open_buckets: dict[torch.dtype, list[Tensor]] = {}
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = gradient_of(parameter)
        open_buckets.setdefault(gradient.dtype, []).append(gradient)
        sizes[gradient.dtype] = sizes.get(gradient.dtype, 0) + gradient.nbytes
        if sizes[gradient.dtype] >= _BUCKET_BYTES:
            yield open_buckets.pop(gradient.dtype)
            sizes.pop(gradient.dtype)
    yield from open_buckets.values()
