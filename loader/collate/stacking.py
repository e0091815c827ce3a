"""default_collate, with the large tensors of a batch in memory that is used again.

torch's stacks into new memory, of which the kernel clears and maps each page: several times what
copying the samples takes. And it stacks in several threads, which wait for each other where workers
have the cores: a copy by one is over sooner, and takes a fraction of the processors' time. What is
returned is the same in all else. Its table of functions has a private place, but is documented to
be changed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ...workers.arena.packing import is_ordinary
from .buffers import SMALLEST_KEPT, BufferPool


class WarmCollate:
    """default_collate of one loader, with buffers of its own.

    >>> WarmCollate()([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """

    def __init__(self) -> None:
        self._buffers = BufferPool()

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch of samples; raises what default_collate raises."""
        functions = default_collate_fn_map
        # Who has replaced torch's entry knows better what to do with tensors.
        if functions.get(torch.Tensor) is collate_tensor_fn:
            functions = {**functions, torch.Tensor: self._stack}
        return collate(samples, collate_fn_map=functions)

    def _stack(self, batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        nbytes = first.numel() * first.element_size()
        if nbytes * len(batch) < SMALLEST_KEPT or not _are_alike(batch):
            stacked: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
            return stacked
        memory = self._buffers.take(nbytes * len(batch))
        for row, each in zip(memory.reshape(len(batch), nbytes), batch, strict=True):
            row[:] = each.view(-1).view(torch.uint8).numpy()
        return torch.from_numpy(memory).view(first.dtype).view(len(batch), *first.shape)


def _are_alike(batch: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are bytes of one type and shape, one after the other."""
    first = batch[0]
    return all(
        type(each) is torch.Tensor
        and each.dtype is first.dtype
        and each.shape == first.shape
        and each.is_contiguous()
        and is_ordinary(each)
        for each in batch
    )
