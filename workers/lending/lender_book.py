"""A worker's books: which payloads are in its memory, and who may still read them; no memory here.

Theory of operation. Payloads lie side by side in *runs*. A run is *announced* to the balancer, with
all payloads in it, by its handle, whose serial number is never used again. The balancer frees it
when nobody needs any of them any more. Then the ranks that may read it are *asked*, and each
answers as soon as it does not; what it has answered once, it will not read later, however late the
handle comes. Only then is there room for another run. A rank that ends has answered everything. A
rank that connects later is told which runs it may still read: a handle that names another one is
too old.
"""

from collections.abc import Collection, Iterable

import msgspec

from ...balancer.protocol.messages import PayloadHandle
from .segments import Segments, aligned

Ask = dict[bytes, list[int]]


# Payloads join a run up to this size: of a run nothing is given back before all of it is.
MOST_RUN_BYTES = 1 << 20
# And up to this part of the worker's memory.
RUN_PART = 16


class _Entry(msgspec.Struct, gc=False):
    """A run: its segment and bytes; awaited: the ranks that were asked, None before it was freed.

    spoiled: a forked child of one of them may read it for ever.
    """

    segment: int
    awaited: set[bytes] | None = None
    spoiled: bool = False


class _OpenRun(msgspec.Struct, gc=False):
    """The run that payloads can still join: where its next goes, and where its room ends."""

    serial: int
    segment: int
    next: int
    end: int


class LenderBook:
    """The runs in one worker's memory, by serial number."""

    def __init__(self, token: int, segments: Segments, most_run_bytes: int | None = None) -> None:
        """`token` tells this worker's memory from that of all others.

        most_run_bytes: payloads join a run up to this size; None follows from the memory.
        """
        self.token = token
        self.segments = segments
        self.readers: set[bytes] = set()
        self._entries: dict[int, _Entry] = {}
        self._last = 0
        self._open: _OpenRun | None = None
        usual = min(MOST_RUN_BYTES, segments.most_bytes // RUN_PART)
        self._most_run_bytes = usual if most_run_bytes is None else most_run_bytes

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The serial before which there are no runs."""
        return next(iter(self._entries), self._last + 1)

    def add(self, nbytes: int, opens: bool = True) -> PayloadHandle | None:
        """Return the handle of a payload in a new run, None where there is no room.

        opens: others may join it.
        """
        self._end_run()
        place = self.segments.take(nbytes, self._most_run_bytes if opens else 0)
        if place is None:
            return None
        segment, start, end = place
        self._last += 1
        self._entries[self._last] = _Entry(segment)
        if opens:
            self._open = _OpenRun(self._last, segment, aligned(start + nbytes), end)
        return PayloadHandle(self.token, self._last, segment, start, nbytes)

    def join(self, nbytes: int) -> PayloadHandle | None:
        """Return the handle of a further payload in the last run; None where it has no room.

        The caller knows that the run is not announced yet.
        """
        run = self._open
        if run is None or run.next + nbytes > run.end:
            return None
        start = run.next
        run.next = aligned(start + nbytes)
        return PayloadHandle(self.token, run.serial, run.segment, start, nbytes)

    def is_full(self, nbytes: int) -> bool:
        """Return whether a new run needs another segment than the one that is written to."""
        self._end_run()
        return self.segments.is_full(nbytes)

    def _end_run(self) -> None:
        """Give the room back that the open run has left, unless all of it was freed meanwhile."""
        run, self._open = self._open, None
        if run is not None and run.serial in self._entries:
            self.segments.shorten(run.segment, run.next, run.end - run.next, 0)

    def refuse(self, handle: PayloadHandle) -> None:
        """Take back the handle just made: there is no memory for its segment, which is new."""
        self._open = None
        del self._entries[handle.serial]
        self.segments.forget(handle.segment)

    def shorten(self, handle: PayloadHandle, nbytes: int) -> PayloadHandle:
        """Return the handle of a payload, a run of its own, that takes less than its room."""
        self.segments.shorten(handle.segment, handle.offset, handle.nbytes, nbytes)
        return PayloadHandle(self.token, handle.serial, handle.segment, handle.offset, nbytes)

    def take_back(self, handle: PayloadHandle) -> None:
        """Take back a handle that was not announced: nobody reads there."""
        self.shorten(handle, 0)
        del self._entries[handle.serial]
        self.segments.give(handle.segment)

    def connect(self, reader: bytes) -> tuple[int, list[int]]:
        """Record that a rank reads here; return the serials of the runs that it may read.

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
        """Free runs; return whom to ask about which. Unknown and repeated serials are ignored.

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
        """Free all runs: the balancer has forgotten this worker, or its job is over."""
        self._open = None
        return self.free(list(self._entries))

    def answer(self, reader: bytes, serials: Iterable[int], spoiled: bool = False) -> None:
        """Record that a rank does not read runs any more; `spoiled`: a child of it may."""
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
