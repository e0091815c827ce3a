"""A worker's books: which payloads are in its memory, and who may still read them; no memory here.

Theory of operation. A payload is *announced* to the balancer by its handle, whose serial number is
never used again. The balancer frees it when nobody needs it any more. Then the ranks that may read
it are *asked*, and each answers as soon as it does not; what it has answered once, it will not read
later, however late the handle comes. Only then is there room for another payload. A rank that ends
has answered everything. A rank that connects later is told which payloads it may still read: a
handle that names another one is too old.
"""

from collections.abc import Collection, Iterable

import msgspec

from ...balancer.protocol.messages import PayloadHandle
from .segments import Segments

Ask = dict[bytes, list[int]]


class _Entry(msgspec.Struct, gc=False):
    """A payload: its segment; awaited: the ranks that were asked, None before it was freed.

    spoiled: a forked child of one of them may read it for ever.
    """

    segment: int
    awaited: set[bytes] | None = None
    spoiled: bool = False


class LenderBook:
    """The payloads in one worker's memory, by serial number."""

    def __init__(self, token: int, segments: Segments) -> None:
        """`token` tells this worker's memory from that of all others."""
        self.token = token
        self.segments = segments
        self.readers: set[bytes] = set()
        self._entries: dict[int, _Entry] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The serial before which there are no payloads."""
        return next(iter(self._entries), self._last + 1)

    def add(self, nbytes: int) -> PayloadHandle | None:
        """Return the handle of a new payload, None where there is no room."""
        place = self.segments.take(nbytes)
        if place is None:
            return None
        self._last += 1
        self._entries[self._last] = _Entry(place[0])
        return PayloadHandle(self.token, self._last, *place, nbytes)

    def refuse(self, handle: PayloadHandle) -> None:
        """Take back the handle just made: there is no memory for its segment, which is new."""
        del self._entries[handle.serial]
        self.segments.forget(handle.segment)

    def shorten(self, handle: PayloadHandle, nbytes: int) -> PayloadHandle:
        """Return the handle of a payload that takes less than the room that was made for it."""
        self.segments.shorten(handle.segment, handle.offset, handle.nbytes, nbytes)
        return PayloadHandle(self.token, handle.serial, handle.segment, handle.offset, nbytes)

    def take_back(self, handle: PayloadHandle) -> None:
        """Take back a handle that was not announced: nobody reads there."""
        self.shorten(handle, 0)
        del self._entries[handle.serial]
        self.segments.give(handle.segment)

    def connect(self, reader: bytes) -> tuple[int, list[int]]:
        """Record that a rank reads here; return the serials that it may read.

        These are all from the first number on, and those in the list.
        """
        self.readers.add(reader)
        free = [serial for serial, entry in self._entries.items() if entry.awaited is None]
        return self._last + 1, free

    def disconnect(self, reader: bytes) -> None:
        """Record that a rank has ended, or reads nothing any more."""
        self.readers.discard(reader)
        waiting = [s for s, entry in self._entries.items() if entry.awaited is not None]
        self.answer(reader, waiting)

    def free(self, serials: Iterable[int], readers: Collection[bytes] | None = None) -> Ask:
        """Free payloads; return whom to ask about which. Unknown and repeated serials are ignored.

        readers: who may read them, None for all that are connected.
        """
        ask: Ask = {}
        reading = self.readers if readers is None else self.readers.intersection(readers)
        for serial in serials:
            entry = self._entries.get(serial)
            if entry is None or entry.awaited is not None:
                continue
            entry.awaited = set(reading)
            for reader in reading:
                ask.setdefault(reader, []).append(serial)
            self._settle(serial, entry)
        return ask

    def free_all(self) -> Ask:
        """Free all payloads: the balancer has forgotten this worker, or its job is over."""
        return self.free(list(self._entries))

    def answer(self, reader: bytes, serials: Iterable[int], spoiled: bool = False) -> None:
        """Record that a rank does not read payloads any more; `spoiled`: a child of it may."""
        for serial in serials:
            entry = self._entries.get(serial)
            if entry is not None and entry.awaited is not None and reader in entry.awaited:
                entry.awaited.discard(reader)
                entry.spoiled |= spoiled
                self._settle(serial, entry)

    def _settle(self, serial: int, entry: _Entry) -> None:
        if not entry.awaited:
            del self._entries[serial]
            self.segments.give(entry.segment, entry.spoiled)
