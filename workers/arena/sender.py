"""The sending process' slots: takes them, hands them over, and learns that they are free again.

Only the sender decides what is in a slot. It writes a slot before it hands it over and never after;
the receiver says through a pipe that no tensor of its refers to it any more. A tensor of the sender
itself on the slot (a batch that was stacked there, and kept in the worker) holds it as well.
"""

import os
import secrets
import struct
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .memory import Mapping, make_memory
from .slot_book import SlotBook, slot_size
from .views import watched_view

# A freed slot: its number times two, and one more if it must not be used again.
FREED = struct.Struct("<Q")
_PIPE_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class OwnSlot:
    """One slot; handed: the receiver has it; held: a tensor of this process refers to it.

    descriptor: until the receiver was sent it; bytes: to write to; spoiled: a forked child may
    still read it.
    """

    number: int
    mapping: Mapping
    descriptor: int
    bytes: npt.NDArray[np.uint8]
    handed: bool = False
    held: bool = False
    spoiled: bool = False


class Sender:
    """The slots of one process for one receiver; not for use by several threads.

    token: tells the receiver's senders apart, also one that took the place of another.
    """

    _process = -1  # until all is there: an exception may leave the constructor in its middle

    def __init__(self) -> None:
        self.token = secrets.randbits(63)
        self.unannounced: list[OwnSlot] = []
        # Opened for the first slot, with which the receiver's end is sent: most tasks need none.
        self._freed_reader = self._freed_writer = -1
        self._book = SlotBook()
        self._slots: dict[int, OwnSlot] = {}
        self._by_address: dict[int, OwnSlot] = {}
        self._let_go: deque[tuple[OwnSlot, bool]] = deque()
        self._process = os.getpid()

    def take(self, nbytes: int) -> OwnSlot:
        """Return a slot for `nbytes` bytes, contents undefined; OSError where memory is short."""
        self._collect()
        number, new = self._book.take(nbytes)
        if not new:
            return self._slots[number]
        try:
            return self._make(number, slot_size(nbytes))
        except OSError:
            self._book.drop(number)
            raise

    def tensor(self, nbytes: int) -> torch.Tensor:
        """Return a new slot's first bytes as a tensor of uint8; OSError where memory is short."""
        slot = self.take(nbytes)
        slot.held = True

        def ended(inherited: bool) -> None:
            self._let_go.append((slot, inherited))  # at any moment: `_collect` does the rest

        return torch.frombuffer(watched_view(slot.mapping, nbytes, ended), dtype=torch.uint8)

    def find_slot(self, address: int) -> OwnSlot | None:
        """Return the slot that a tensor of `tensor` lies in, if it can still be handed over."""
        slot = self._by_address.get(address)
        return slot if slot is not None and slot.held and not slot.handed else None

    def pipe_to_send(self) -> list[int]:
        """Return the descriptor that the receiver says what is free with; [] once it has it."""
        descriptor, self._freed_writer = self._freed_writer, -1
        return [] if descriptor < 0 else [descriptor]

    def retired(self) -> list[int]:
        """Return the slots that were given up since this was last asked."""
        numbers, self._book.retired = self._book.retired, []
        return numbers

    def give_back(self, slot: OwnSlot) -> None:
        """Take back a slot that was not handed over."""
        slot.handed = False
        self._settle(slot)

    def _make(self, number: int, size: int) -> OwnSlot:
        for old in self._book.retired:
            if old in self._slots:
                self._forget(self._slots[old])
        if self._freed_reader < 0:
            self._freed_reader, self._freed_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        descriptor = make_memory(size)
        try:
            mapping = Mapping(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        slot = OwnSlot(number, mapping, descriptor, np.frombuffer(mapping.bytes(size), np.uint8))
        self._slots[number] = self._by_address[slot.mapping.address] = slot
        self.unannounced.append(slot)
        return slot

    def _collect(self) -> None:
        """Take back what the receiver, and tensors of this process, have let go."""
        while self._let_go:
            slot, inherited = self._let_go.popleft()
            slot.held, slot.spoiled = False, slot.spoiled or inherited
            if not slot.handed:
                self._settle(slot)
        if self._freed_reader < 0:
            return
        try:
            freed = os.read(self._freed_reader, _PIPE_BYTES)
        except BlockingIOError:
            return
        for (code,) in FREED.iter_unpack(freed):
            slot = self._slots[code >> 1]
            slot.handed, slot.spoiled = False, slot.spoiled or bool(code & 1)
            self._settle(slot)

    def _settle(self, slot: OwnSlot) -> None:
        """Make a slot free for another use, if no tensor refers to it."""
        if slot.held:
            return
        if slot.spoiled:
            self._book.drop(slot.number)
            self._forget(slot)
        else:
            self._book.take_back(slot.number)

    def _forget(self, slot: OwnSlot) -> None:
        del self._slots[slot.number]
        del self._by_address[slot.mapping.address]

    def close(self) -> None:
        """Close the descriptors; the memory goes with its last tensor."""
        for descriptor in (self._freed_reader, *self.pipe_to_send()):
            if descriptor >= 0:
                os.close(descriptor)
        self._freed_reader = -1
        for slot in self.unannounced:
            os.close(slot.descriptor)
        self.unannounced = []

    def __del__(self, _getpid: Any = os.getpid, _finalizing: Any = sys.is_finalizing) -> None:
        # torch raises a worker's death wherever the trainer is, also within its own clean-up,
        # which then leaves close() out. In a forked child the descriptors may be others by now.
        if self._process == _getpid() and not _finalizing():
            self.close()

    def __getstate__(self) -> Any:
        raise NotImplementedError("slots belong to one process")
