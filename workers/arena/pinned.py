"""Pins the slots of an arena where they lie, so that no thread copies batches into pinned memory.

A slot's memory is registered with CUDA when the trainer maps it, once: torch finds the tensors on
it pinned, and its pinning thread hands them on as they are. But `to(device, non_blocking=True)`
then returns before the copy was made, so a slot that nothing refers to any more may still be read
by the device. torch's own pinned memory knows the streams that copy from it; memory of others does
not. So a slot waits twice before it is free:

1. for a batch to be asked for, and another one. By then a loop that copies on a stream of its own
   (a prefetcher) has made its main stream wait for that copy, for it has used what was copied.
2. for an event, recorded then on the asking thread's current stream.

Events are only recorded and looked at by the thread that asks for batches, and not while it
captures a graph: a capture of CUDA's fails when another thread asks for an event.
"""

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .memory import Mapping

Free = Callable[[], None]


class StreamEvent(Protocol):
    """A point in a stream of the device's work."""

    def query(self) -> bool:
        """Return whether the device has come to it."""


class PinningDevice(Protocol):
    """A device that reads pinned memory."""

    def register(self, address: int, size: int) -> str:
        """Pin memory; return why that failed, "" if it did not."""

    def unregister(self, address: int) -> None:
        """Release memory that was pinned."""

    def record(self) -> StreamEvent:
        """Return an event at the end of what the current stream has to do."""

    def is_capturing(self) -> bool:
        """Return whether the current stream captures a graph, and must be left alone."""

    def synchronize(self) -> None:
        """Wait for all streams."""


class CudaDevice:
    """The CUDA device that is current where this is made."""

    _PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices of this process

    def __init__(self) -> None:
        self._index = torch.cuda.current_device()

    def register(self, address: int, size: int) -> str:
        """Pin memory; return why that failed, "" if it did not."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._index):
            error = runtime.cudaHostRegister(address, size, self._PORTABLE)
        return "" if int(error) == 0 else f"cudaHostRegister says {error}"

    def unregister(self, address: int) -> None:
        """Release memory that was pinned."""
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

    def record(self) -> StreamEvent:
        """Return an event at the end of what the current stream has to do."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._index))
        return event

    def is_capturing(self) -> bool:
        """Return whether the current stream captures a graph, and must be left alone."""
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self._index)


class PinnedSlots:
    """The slots of one iterator that were pinned, and those that the device may still read."""

    def __init__(self, device: PinningDevice) -> None:
        self._process = os.getpid()
        self._device = device
        self._fails = False
        # Let go by the trainer; then in steps from one batch to the next.
        self._ended: deque[tuple[Mapping, Free]] = deque()
        self._resting: list[tuple[Mapping, Free]] = []
        self._copying: deque[tuple[StreamEvent, list[tuple[Mapping, Free]]]] = deque()

    def pin(self, mapping: Mapping) -> None:
        """Register a slot's memory; where that fails, say so once, and leave it to be copied."""
        if self._fails:
            return
        why = self._device.register(mapping.address, mapping.size)
        if why:
            self._fails = True
            warnings.warn(
                f"batches cannot be pinned where they lie ({why}); they are copied into pinned "
                "memory: raise the limit of locked memory (ulimit -l), or leave transport",
                stacklevel=2,
            )
            return
        mapping.unpin = self._device.unregister

    def ended(self, mapping: Mapping, free: Free) -> None:
        """Free a slot that nothing refers to; later, if the device may read it.

        Called at any moment, in any thread: it only notes it.
        """
        if mapping.unpin is None:
            free()
        else:
            self._ended.append((mapping, free))

    def settle(self) -> None:
        """Free what has been copied. For the thread that asks for batches, before it does."""
        if not (self._ended or self._resting or self._copying) or self._device.is_capturing():
            return
        while self._copying and self._copying[0][0].query():
            _free(self._copying.popleft()[1])
        if self._resting:
            self._copying.append((self._device.record(), self._resting))
        self._resting = [self._ended.popleft() for _ in range(len(self._ended))]

    def __del__(self, _getpid: Any = os.getpid, _finalizing: Any = sys.is_finalizing) -> None:
        # What the device may still read is unmapped with these lists. A forked child has no such
        # memory, and must not call CUDA.
        left = self._ended or self._resting or self._copying
        if not left or self._process != _getpid() or _finalizing():
            return
        if self._device.is_capturing():  # which waiting would break
            _kept.append((self._ended, self._resting, self._copying))
        else:
            self._device.synchronize()


# Memory that is never unmapped: its loader ended while a graph was being captured.
_kept: list[object] = []


def _free(slots: list[tuple[Mapping, Free]]) -> None:
    for _, free in slots:
        free()


def make_pinned_slots() -> PinnedSlots | None:
    """Return what pins slots; None, and a warning that says why, where they cannot be pinned."""
    if torch.cuda.is_available() and torch.version.hip is None:
        return PinnedSlots(CudaDevice())
    warnings.warn(
        'transport="pinned" needs a CUDA device, and there is none; batches are not pinned where '
        "they lie",
        stacklevel=2,
    )
    return None
