"""Exchanges between the ranks that share images: sizes, rows of tensors, sums of gradients."""

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from math import prod
from os import getpid
from socket import gethostname
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import LoaderError

# Apart from messages that the training loop may have under way.
_TAG = 23
# Bytes of an object's length, and of its beginning, that travel together.
_LENGTH, _SHORT = 8, 4096


class Exchange:
    """The connections of one rank to the others; without torch.distributed it is alone.

    `group`: the ranks, by default all. `device`: where tensors are. All ranks call all methods in
    one order. Each raises LoaderError if a rank does not come within `deadline_s`; on a device the
    deadline is the group's timeout, since the host does not wait there.
    """

    def __init__(self, group: Any, device: torch.device, deadline_s: float) -> None:
        self.deadline_s, self._device = deadline_s, device
        self._group = group
        self.rank, self.ranks = 0, 1
        self.global_rank, self.world = 0, 1
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.global_rank, self.world = dist.get_rank(), dist.get_world_size()
        if self.rank < 0:
            raise ValueError(
                f"this process has global rank {dist.get_rank()} and is not in the group: give "
                "the group of the ranks that share images, on those ranks only"
            )
        self._names = [f"rank {rank}" for rank in range(self.ranks)]
        here = f"process {self.global_rank}, host {gethostname()}, pid {getpid()}"
        self._names = self.gather(f"rank {self.rank} ({here})", "the names of all ranks")

    def gather(self, own: Any, what: str) -> list[Any]:
        """Return a small object of every rank."""
        if self.ranks == 1:
            return [own]
        text = pickle.dumps(own)
        head = len(text).to_bytes(_LENGTH, "little") + text[:_SHORT]
        heads = self._gathered_bytes(head, _LENGTH + _SHORT, what)
        lengths = [int.from_bytes(one[:_LENGTH], "little") for one in heads]
        # Most objects are short, and one exchange is enough; all ranks know whether it is.
        most = max(lengths) - _SHORT
        tails = self._gathered_bytes(text[_SHORT:], most, what) if most > 0 else [b""] * self.ranks
        return [
            pickle.loads((head[_LENGTH:] + tail)[:length])
            for head, tail, length in zip(heads, tails, lengths, strict=True)
        ]

    def swap(
        self, tensor: Tensor, send: Sequence[int], receive: Sequence[int], what: str
    ) -> Tensor:
        """Send rows to each rank, return what each rank sent here, both in the ranks' order."""
        if self.ranks == 1:
            return tensor
        found = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        # Bytes, since backends do not know all precisions.
        width = prod(tensor.shape[1:]) * tensor.element_size()
        given = tensor.contiguous().view(-1).view(torch.uint8)
        sizes = [[width * rows for rows in each] for each in (send, receive)]
        into = found.view(-1).view(torch.uint8)
        if self._device.type == "cpu":
            self._send_each(torch.split(given, sizes[0]), torch.split(into, sizes[1]), what)
        else:
            start = partial(dist.all_to_all_single, into, given, sizes[1], sizes[0])
            self._run(what, partial(start, group=self._group, async_op=True))
        return found

    def add_up(self, tensors: Sequence[Tensor], what: str) -> None:
        """Sum tensors over the ranks, in place, those of one precision in one message."""
        if self.ranks == 1:
            return
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            own = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in own])
            self._run(what, partial(dist.all_reduce, flat, group=self._group, async_op=True))
            parts = torch.split(flat, [tensor.numel() for tensor in own])
            for tensor, part in zip(own, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def copy_values(self, tensors: Sequence[Tensor], what: str) -> None:
        """Give every rank the values of the first one."""
        for tensor in tensors if self.ranks > 1 else ():
            start = partial(dist.broadcast, tensor, group=self._group, group_src=0, async_op=True)
            self._run(what, start)

    def _gathered_bytes(self, own: bytes, size: int, what: str) -> list[bytes]:
        """Return the bytes of every rank, each filled up to the size."""
        padded = bytearray(own.ljust(size, b"\0"))
        given = torch.frombuffer(padded, dtype=torch.uint8).to(self._device)
        found = [torch.empty_like(given) for _ in range(self.ranks)]
        if self._device.type == "cpu":
            self._send_each([given] * self.ranks, found, what)
        else:
            self._run(what, lambda: dist.all_gather(found, given, group=self._group, async_op=True))
        return [one.cpu().numpy().tobytes() for one in found]

    def _send_each(self, given: Sequence[Tensor], found: Sequence[Tensor], what: str) -> None:
        """Send a tensor to each rank and fill one from each, by messages: so who is late is known.

        There is none where a tensor has no bytes.
        """
        found[self.rank].copy_(given[self.rank])
        running: list[tuple[int, Any]] = []
        until, ways = monotonic() + self.deadline_s, ((dist.isend, given), (dist.irecv, found))
        group: Any = self._group or dist.group.WORLD
        for other in (other for other in range(self.ranks) if other != self.rank):
            to = dist.get_global_rank(group, other)
            for start, tensors in ways:
                if tensors[other].numel():
                    with suppress(RuntimeError):  # else its connection is closed
                        running.append((other, None))
                        running[-1] = other, start(tensors[other], to, group, _TAG)
        if late := sorted({other for other, work in running if not _arrives(work, until)}):
            raise LoaderError(
                f"rank {self.rank} of {self.ranks} did not get {what} within {self.deadline_s:g} s "
                f"from {', '.join(self._names[other] for other in late)}: it has ended, is "
                "stopped, or has left out a step(), features() or backward() of the others"
            )

    def _run(self, what: str, start: Callable[[], Any]) -> None:
        """Start a collective and wait for it."""
        try:
            work = start()
            if self._device.type == "cpu":
                work.wait(timedelta(seconds=self.deadline_s))
            else:
                work.wait()
        except RuntimeError as error:
            raise LoaderError(
                f"rank {self.rank} of {self.ranks} did not get {what} within "
                f"{self.deadline_s:g} s: a rank has ended, is stopped, or has left out a step(), "
                f"features() or backward() of the others ({str(error).splitlines()[0]})"
            ) from error


def _arrives(work: Any, until: float) -> bool:
    """Return whether a message is over in time; one that was not started (None) is not."""
    if work is None:
        return False
    try:
        work.wait(timedelta(seconds=max(0.001, until - monotonic())))
    except RuntimeError:
        return False
    return True
