"""default_collate, with the large tensors of a batch in memory that is used again.

A worker that has all samples of a microbatch stacks them where the trainer reads them. Other
samples come as bytes, and need not be made: where all have one form, as they usually do, the bytes
of each member go side by side, without a tensor for each sample.

torch's stacks into new memory, of which the kernel clears and maps each page: several times what
copying the samples takes. And it stacks in several threads, which wait for each other where workers
have the cores: a copy by one is over sooner, and takes a fraction of the processors' time. What is
returned is the same in all else. Its table of functions has a private place, but is documented to
be changed.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ...workers.arena.packing import is_ordinary
from ...workers.codec.frames import MAX_REMEMBERED_BYTES, encode_packed
from ...workers.codec.tensors import Encoded, MemberPlace, SampleForm, TensorRows, form_of
from ...workers.lending.placed_payloads import PlacedPayloads
from .buffers import SMALLEST_KEPT, BufferPool, Bytes
from .payloads import bytes_of

# With others in its table, default_collate may do anything with what contains tensors.
_USUAL_TYPES = frozenset(default_collate_fn_map)
# Smaller tensors are stacked in less time than their bytes are found.
_LEAST_ROW = 16 << 10


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

    def of_payloads(self, headers: Sequence[bytes], payloads: Collection[Any]) -> Any:
        """Return the batch of samples that are not decoded; None where they have to be.

        headers, payloads: as encode_packed makes them.
        """
        if not (headers and is_torchs()):
            return None
        if headers.count(headers[0]) < len(headers) or len(headers[0]) > MAX_REMEMBERED_BYTES:
            return None
        form = form_of(headers[0])
        # A worker may have announced less or more than the form says; decoding names the sample.
        if form is None:
            return None
        if not isinstance(payloads, PlacedPayloads):
            payloads = [bytes_of(payload) for payload in payloads]
            if any(len(view) != form.nbytes for view in payloads):
                return None
        elif not payloads.have_size(form.nbytes):
            return None
        return _contained(form, [self._member(place, payloads) for place in form.places])

    def _member(self, place: MemberPlace, payloads: Collection[memoryview]) -> torch.Tensor:
        """Return what default_collate makes of one member of all samples."""
        kind, start, nbytes, count = place.kind, place.start, place.nbytes, len(payloads)
        if not isinstance(kind, torch.dtype):
            values = [kind.unpack_from(view, start)[0] for view in payloads]
            numbers: torch.Tensor = collate(values, collate_fn_map=default_collate_fn_map)
            return numbers
        if not nbytes:
            return torch.empty((count, *place.shape), dtype=kind)
        if nbytes * count < SMALLEST_KEPT:
            batch = torch.empty(nbytes * count, dtype=torch.uint8)
            memory = batch.numpy()
        else:
            memory = self._buffers.take(nbytes * count)
            batch = torch.from_numpy(memory)
        if isinstance(payloads, PlacedPayloads):
            _copy_evenly(memory.reshape(count, nbytes), place, payloads)
        else:
            room = memoryview(memory)  # type: ignore[arg-type]
            for at, view in zip(range(0, nbytes * count, nbytes), payloads, strict=True):
                room[at : at + nbytes] = view[start : start + nbytes]
        return batch.view(kind).view(count, *place.shape)

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


def is_torchs() -> bool:
    """Return whether default_collate is torch's: nobody has changed its table of functions.

    >>> is_torchs()
    True
    """
    functions = default_collate_fn_map
    is_usual = functions.get(torch.Tensor) is collate_tensor_fn
    return is_usual and functions.keys() == _USUAL_TYPES


def collate_together(samples: Sequence[Any], sizes: Sequence[int]) -> list[Encoded] | None:
    """Return what default_collate makes of microbatches of these sizes, as `encode_packed` does.

    None where it makes nothing that can be sent; who collates them then says why. The rows of large
    tensors are the samples' own memory.
    """
    if not is_torchs():
        return None
    functions = {**default_collate_fn_map, torch.Tensor: _rows}
    ends = accumulate(sizes, initial=0)
    try:
        return [
            encode_packed(collate(samples[begin:end], collate_fn_map=functions))
            for begin, end in pairwise(ends)
        ]
    except Exception:  # whatever a sample's own types raise
        return None


def _rows(tensors: Sequence[torch.Tensor], **_: Any) -> Any:
    """Return a batch's tensor, or what it is to be made of."""
    first = tensors[0]
    if first.is_nested or first.layout is not torch.strided:
        raise TypeError("default_collate takes no such tensors")
    if any(map(_requires_grad, tensors)):
        raise TypeError("what was computed from them is not known to another process")
    if first.numel() * first.element_size() < _LEAST_ROW:
        return torch.stack([*tensors])
    return TensorRows(tensors)


_requires_grad = attrgetter("requires_grad")


def _copy_evenly(rows: Bytes, place: MemberPlace, payloads: PlacedPayloads) -> None:
    """Copy a member of each sample to a row; what lies evenly in a worker's memory at once."""
    at = 0
    for run, start, step, count in payloads.stretches():
        first, shape = start + place.start, (count, place.nbytes)
        if count == 1:  # in half the time
            memoryview(rows[at])[:] = run[first : first + place.nbytes]
        else:
            rows[at : at + count] = np.ndarray(shape, np.uint8, run, first, (step, 1))
        at += count


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


def _contained(form: SampleForm, members: list[torch.Tensor]) -> Any:
    """Return the members of a batch in the container that default_collate gives them."""
    if form.container == "one":
        return members[0]
    return dict(zip(form.names, members, strict=True)) if form.container == "dict" else members
