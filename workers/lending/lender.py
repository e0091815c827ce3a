"""A worker's memory for payloads, and the door where ranks ask for it.

The worker's thread writes payloads, and hears answers when it needs room. Ranks that connect are
let in by a thread of their own, which sleeps otherwise: a rank that waits for its first payload
must not wait for a decode. Both change the books, under one lock.
"""

import _thread
import array
import contextlib
import itertools
import os
import secrets
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.protocol.messages import FreeSlots, PayloadHandle
from ..arena.memory import Mapping, make_memory
from ..sources.allocation import Allocate, new_bytes
from .lender_book import Ask, LenderBook
from .packets import (
    ANSWER,
    ASK,
    KNOWN,
    MOST_BYTES,
    MOST_SEGMENTS,
    RETIRED,
    SEGMENTS,
    packet,
    packets,
    read_packet,
)
from .room import LEAST_BYTES, Room, with_rest
from .segments import Segments

# A rank that connects says its name at once.
_NAME_S = 5.0
_NAME_BYTES = 256
_DOOR = "lender-"
# Until it listens.
_MADE = "new-lender-"
# The thread that lets ranks in has Python's lock this soon while the first is awaited: who waits
# for it waits for a first batch.
_SWITCH_S = 0.0005


def door_of(directory: str, token: int) -> str:
    """Return the path of the socket where a worker lends its memory."""
    return f"{directory}/{_DOOR}{token:016x}"


def doors_in(directory: str) -> list[int]:
    """Return the tokens of the workers whose doors are in a directory."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 (pathlib takes ten times as long)
    except FileNotFoundError:  # the balancer has ended
        return []
    return [int(name.removeprefix(_DOOR), 16) for name in names if name.startswith(_DOOR)]


def remove_door(directory: str, token: int) -> None:
    """Remove the door of a worker that has ended, which could not do it: it was killed."""
    with contextlib.suppress(OSError):
        Path(door_of(directory, token)).unlink()


@dataclass(slots=True, eq=False)
class _Reader:
    """A rank's connection.

    peer: the rank; name: the connection, in the books; `unsent`: packets, and the descriptors to
    close when each is sent.
    """

    peer: bytes
    name: bytes
    socket: socket.socket
    unsent: deque[tuple[bytes, list[int]]] = field(default_factory=deque)


@dataclass(slots=True)
class _Memory:
    """A segment: its descriptor, its mapping, and the bytes to write to."""

    descriptor: int
    mapping: Mapping
    bytes: memoryview


class Lender:
    """The memory of one worker process; its socket is in a directory that only this user can read.

    Not to be inherited by a forked child. Call `begin()`, and `close()`.
    """

    def __init__(self, directory: str, most_bytes: int) -> None:
        """Make the door; `most_bytes` bounds the memory. OSError where there can be no door."""
        token = secrets.randbits(62)
        self._book = LenderBook(token, Segments(most_bytes))
        self._memories: dict[int, _Memory] = {}
        self._readers: dict[int, _Reader] = {}
        self._poller = select.poll()
        self._lock = threading.Lock()
        self._reserved: Room | None = None
        self._path = door_of(directory, token)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Who finds a door at which nobody listens takes it for that of a worker that has ended.
            made = f"{directory}/{_MADE}{token:016x}"
            self._door.bind(made)
            self._door.listen()
            os.rename(made, self._path)  # noqa: PTH104
        except OSError:
            self._door.close()
            raise

    def begin(self) -> None:
        """Accept connections of ranks from now on.

        To start a thread takes a new process as long as many samples: first it says that it can be
        leased some. No Thread: its start would wait until it has a core.
        """
        _thread.start_new_thread(self._let_in, ())

    def lend(self, buffers: Sequence[Any], joins: bool = False) -> PayloadHandle | None:
        """Write a payload, given as buffers, and return its handle; None where there is no room.

        joins: it may lie in the run of the one before, which is not announced yet.
        """
        nbytes = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if not nbytes:
            return None
        reserved = self._reserved
        if reserved is not None and reserved.complete(buffers):
            self._reserved = None
            with self._lock:
                return self._book.shorten(reserved.handle, nbytes)
        # No other thread changes what joining does.
        handle = self._book.join(nbytes) if joins else None
        if handle is None:
            with self._lock:
                handle = self._place_for(nbytes)
        if handle is not None:
            memory, start = self._memories[handle.segment].bytes, handle.offset
            for buffer in buffers:
                end = start + len(buffer)
                memory[start:end] = buffer
                start = end
        if reserved is not None:
            self._take_back()  # only now: the buffers may lie there
        return handle

    def allocator(self) -> Allocate:
        """Return what gives a sample memory: lent memory to its first array that is large.

        The payload that is lent next is that sample's: what others have must not be written to any
        more. It is to be called by the thread that lends.
        """
        self._take_back()
        return self._allocate

    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        if nbytes < LEAST_BYTES or self._reserved is not None:
            return new_bytes(nbytes)
        with self._lock:
            handle = self._place_for(with_rest(nbytes), opens=False)
        if handle is None:
            return new_bytes(nbytes)
        memory = self._memories[handle.segment].bytes
        self._reserved = Room(handle, memory[handle.offset : handle.offset + handle.nbytes])
        return self._reserved.array(nbytes)

    def _take_back(self) -> None:
        """Give the room back that was reserved and not used."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            with self._lock:
                self._book.take_back(reserved.handle)

    def _place_for(self, nbytes: int, opens: bool = True) -> PayloadHandle | None:
        """Return the place of a payload in a new run, None where there is none.

        opens: others may join it.
        """
        # What ranks have answered makes room. To hear it takes as long as to write 30 KB.
        if self._book.is_full(nbytes):
            self._hear()
        handle = self._book.add(nbytes, opens)
        if handle is not None and not self._has_memory(handle.segment):
            self._book.refuse(handle)
            return None
        return handle

    def free(self, message: FreeSlots) -> None:
        """Free payloads that the balancer does not need any more."""
        with self._lock:
            names = [r.name for r in self._readers.values() if r.peer in message.readers]
            self._ask(self._book.free(message.serials, names if message.readers else None))
            self._hear()

    def free_all(self) -> None:
        """Free all payloads: the balancer has forgotten this worker, or its job is over."""
        self._take_back()
        with self._lock:
            self._ask(self._book.free_all())

    def trim(self) -> None:
        """Give back the memory that nothing is in: there is no work."""
        self._take_back()
        with self._lock:
            self._hear()
            self._book.segments.trim()
            self._retire()

    def close(self) -> None:
        """Close the door and all connections; what ranks have mapped stays with them."""
        with contextlib.suppress(OSError):
            Path(self._path).unlink()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread
        with self._lock:
            self._door.close()
            for reader in list(self._readers.values()):
                self._leave(reader)
            for number in list(self._memories):
                self._drop(number)

    # --- memory

    def _has_memory(self, number: int) -> bool:
        """Return whether a segment has its memory; a new one is made, if there is some."""
        if number in self._memories:
            return True
        self._retire()  # first: what was given up makes room
        size = self._book.segments.size(number)
        try:
            descriptor = make_memory(size)
        except OSError:
            return False
        try:
            mapping = Mapping(descriptor, size)
        except OSError:
            os.close(descriptor)
            return False
        self._memories[number] = _Memory(descriptor, mapping, _writable(mapping))
        for reader in list(self._readers.values()):  # one that has ended is left
            self._send(reader, *self._segment_packets([number]))
        return True

    def _retire(self) -> None:
        retired, self._book.segments.retired = self._book.segments.retired, []
        gone = [number for number in retired if number in self._memories]
        for number in gone:
            self._drop(number)
        for reader in list(self._readers.values()) if gone else ():
            self._send(reader, (packet(RETIRED, 0, gone), []))

    def _drop(self, number: int) -> None:
        memory = self._memories.pop(number)
        memory.bytes.release()
        os.close(memory.descriptor)

    # --- ranks

    def _let_in(self) -> None:
        """Accept ranks' connections, until the door is closed."""
        numbers = itertools.count()  # a rank may have two connections, one for what it still reads
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            try:
                connection.settimeout(_NAME_S)
                peer = connection.recv(_NAME_BYTES)
                connection.setblocking(False)
                name = b"%s/%d" % (peer, next(numbers))
                with self._lock:
                    self._welcome(_Reader(peer, name, connection))
                sys.setswitchinterval(usual_s)
            except OSError:
                connection.close()

    def _welcome(self, reader: _Reader) -> None:
        self._readers[reader.socket.fileno()] = reader
        self._poller.register(reader.socket, select.POLLIN)
        first, serials = self._book.connect(reader.name)
        known = [(each, list[int]()) for each in packets(KNOWN, first, serials)]
        self._send(reader, *self._segment_packets(list(self._memories)), *known)
        self._send(reader, (packet(KNOWN, first, ()), []))

    def _segment_packets(self, numbers: list[int]) -> Iterable[tuple[bytes, list[int]]]:
        for start in range(0, len(numbers), MOST_SEGMENTS):
            some = numbers[start : start + MOST_SEGMENTS]
            memories = [self._memories[number] for number in some]
            told = [x for n, m in zip(some, memories, strict=True) for x in (n, m.mapping.size)]
            yield packet(SEGMENTS, 0, told), [os.dup(memory.descriptor) for memory in memories]

    def _hear(self) -> None:
        """Read what ranks have answered, and send packets that there was no room for."""
        for descriptor, _ in self._poller.poll(0) if self._readers else ():
            reader = self._readers[descriptor]
            while (data := _received(reader.socket)) is not None:
                if not data:
                    self._leave(reader)
                    break
                self._take_answer(reader, data)
        for reader in [each for each in self._readers.values() if each.unsent]:
            self._send(reader)

    def _take_answer(self, reader: _Reader, data: bytes) -> None:
        kind, _, codes = read_packet(data)
        if kind != ANSWER:
            raise ValueError(f"a rank has sent a packet of kind {kind}")
        self._book.answer(reader.name, [code >> 1 for code in codes if not code & 1])
        self._book.answer(reader.name, [code >> 1 for code in codes if code & 1], spoiled=True)

    def _ask(self, ask: Ask) -> None:
        for reader in [each for each in self._readers.values() if each.name in ask]:
            asked = packets(ASK, self._book.oldest, ask[reader.name])
            self._send(reader, *((each, list[int]()) for each in asked))

    def _send(self, reader: _Reader, *new: tuple[bytes, list[int]]) -> None:
        """Send packets, as far as there is room; a rank that has ended is left."""
        reader.unsent.extend(new)
        while reader.unsent:
            data, descriptors = reader.unsent[0]
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            try:
                reader.socket.sendmsg([data], [rights] if descriptors else [])
            except BlockingIOError:
                return
            except OSError:
                self._leave(reader)
                return
            _close_sent(reader.unsent.popleft())

    def _leave(self, reader: _Reader) -> None:
        """Close a rank's connection: it reads nothing any more."""
        if self._readers.pop(reader.socket.fileno(), None) is not None:
            self._poller.unregister(reader.socket)
            reader.socket.close()
            while reader.unsent:
                _close_sent(reader.unsent.popleft())
            self._book.disconnect(reader.name)


def _writable(mapping: Mapping) -> memoryview:
    owner = mapping.bytes(mapping.size)
    owner.mapping = mapping  # an array that a transform keeps must not be at nobody's address
    return memoryview(owner).cast("B")


def _close_sent(sent: tuple[bytes, list[int]]) -> None:
    """Close the descriptors that went with a packet."""
    for descriptor in sent[1]:
        os.close(descriptor)


def _received(connection: socket.socket) -> bytes | None:
    """Return the next packet, empty at the end, None if there is none."""
    try:
        return connection.recv(MOST_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
