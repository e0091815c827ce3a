"""Lays one object out for a message: which bytes lie in slots, and which are copied.

A large piece gets a slot of its own, which the receiver's tensor is a view of: labels of a batch
that are kept do not keep its pictures, too. Small pieces travel with the pickle, and the receiver
has a copy of each. What does not fit into a message goes into a slot that is free again as soon as
it was read.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import frames
from .packing import Piece, pack
from .sender import OwnSlot, Sender

# Smaller pieces are copied: a view costs a few microseconds on both sides.
LEAST_IN_SLOT = 32 << 10
# Of one object: a batch of ten thousand tensors would need ten thousand mappings.
_MOST_SLOTS = 512

Packet = tuple[list[Any], list[int]]


class Packets:
    """An object that is about to be sent; raises what pickling raises, OSError without memory."""

    def __init__(self, message: Any, sender: Sender) -> None:
        self._sender = sender
        self._taken: list[OwnSlot] = []
        self._pickled, pieces = pack(message, sender)
        try:
            self._body = self._place(pieces)
        except BaseException:
            for slot in self._taken:
                sender.give_back(slot)
            raise
        for slot in self._taken:
            slot.handed = True

    def packets(self) -> Iterator[Packet]:
        """Yield the messages, and the descriptors beside each, which are the caller's to close."""
        yield from self._announcements()
        yield self._body, []

    def _place(self, pieces: list[Piece]) -> list[Any]:
        """Return the last message's parts: bytes are in slots, or among them."""
        entries, copied, length = [], [], len(self._pickled)
        for piece in pieces:
            slot = self._slot(piece)
            entries.append((frames.NO_SLOT if slot is None else slot.number, piece.data.nbytes))
            if slot is None:
                copied.append(piece.data)
                length += piece.data.nbytes
        token = self._sender.token
        parts = frames.body(token, entries, self._pickled, copied)
        length += len(parts[0]) + len(parts[1])
        if length <= frames.MOST_INLINE:
            return parts
        slot = self._take(length)
        _fill(slot, parts)
        return [frames.body_in_slot(token, slot.number, length)]

    def _slot(self, piece: Piece) -> OwnSlot | None:
        """Return the slot that has the bytes of a piece now, None if they are to be copied."""
        if piece.slot is not None:
            self._taken.append(piece.slot)
            return piece.slot
        if piece.data.nbytes < LEAST_IN_SLOT or len(self._taken) >= _MOST_SLOTS:
            return None
        slot = self._take(piece.data.nbytes)
        _fill(slot, [piece.data])
        return slot

    def _take(self, nbytes: int) -> OwnSlot:
        slot = self._sender.take(nbytes)
        self._taken.append(slot)
        return slot

    def _announcements(self) -> Iterator[Packet]:
        """Yield what the receiver must know of new and retired slots before it reads the body."""
        sender, most = self._sender, frames.MOST_SLOTS
        new, sender.unannounced = sender.unannounced, []
        retired = sender.retired()
        while new or retired:
            announced, new = new[:most], new[most:]
            gone, retired = retired[:most], retired[most:]
            descriptors = [*sender.pipe_to_send(), *(slot.descriptor for slot in announced)]
            sizes = [(slot.number, slot.mapping.size) for slot in announced]
            for slot in announced:
                slot.descriptor = -1
            yield [frames.slots(sender.token, sizes, gone)], descriptors


def _fill(slot: OwnSlot, parts: list[Any]) -> None:
    """Copy bytes into a slot, one after the other."""
    target, start = slot.bytes, 0
    for part in parts:
        source = np.frombuffer(part, np.uint8)
        target[start : start + len(source)] = source
        start += len(source)
