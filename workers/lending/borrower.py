"""A rank's access to payloads in the memory of workers on its machine.

A worker's memory is mapped when the first handle of it comes, and stays mapped while any tensor
refers to it, whether the worker lives or not. The rank answers the worker's questions when it is
there: it has no thread.
"""

import array
import os
import select
import socket
from collections import deque
from collections.abc import Iterable, Sequence

from ...balancer.protocol.messages import PayloadHandle
from ..arena.memory import Mapping, received_descriptors
from ..arena.views import watched_view
from ..signals.holding import uninterrupted
from .borrower_book import BorrowerBook
from .lender import door_of, doors_in, remove_door
from .packets import (
    ANSWER,
    ASK,
    KNOWN,
    MOST_BYTES,
    MOST_SEGMENTS,
    RETIRED,
    SEGMENTS,
    packets,
    read_packet,
)

# A worker that does not answer a rank within this time hangs.
_ANSWER_S = 5.0
# A rank knocks at so many doors; to look whether a worker has said something costs it each time.
MOST_DOORS = 16
# While a rank rests, up to so much that workers may have given up stays mapped: to map it again
# would hold up the first batch after it.
MOST_RESTING = 64 << 20
_ANCILLARY = socket.CMSG_SPACE(MOST_SEGMENTS * array.array("i").itemsize)


class _LentMemory:
    """One worker's memory, as this process sees it.

    The connection is closed when no view is left: while it is open, the worker waits for answers.
    """

    def __init__(self, door: str, name: bytes) -> None:
        """Connect, and do not wait for the answer; OSError where the worker has ended."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.mappings: dict[int, Mapping] = {}
        self.book = BorrowerBook(0, ())
        # Whether the worker has said what may be read here, and what it has said so far.
        self.is_known = False
        self._known: list[int] = []
        # By segment: views, each with its serials.
        self.in_use: dict[int, set[int]] = {}
        self.ended = False
        self._let_go: deque[tuple[int, set[int], bool]] = deque()
        self._spoiled: set[int] = set()
        self._unsent: deque[bytes] = deque()
        self._views = 0
        try:
            self._socket.settimeout(_ANSWER_S)
            self._socket.connect(door)
            self._socket.send(name)
        except BaseException:
            self._socket.close()
            raise

    def await_known(self) -> None:
        """Wait, once, for what may be read here; OSError where the worker does not say it.

        After any exception the connection is of no use.
        """
        while not self.is_known:
            kind, first, numbers = self._receive()
            self._known += numbers
            if kind == KNOWN and not numbers:
                self.book = BorrowerBook(first, self._known)
                self._socket.setblocking(False)
                self.is_known = True

    @uninterrupted
    def _receive(self) -> tuple[int, int, list[int]]:
        """Return the next packet; new segments are mapped. OSError at the end."""
        data, ancillary, _, _ = self._socket.recvmsg(MOST_BYTES, _ANCILLARY)
        if not data:
            raise ConnectionResetError("the worker has ended")
        kind, first, numbers = read_packet(data)
        if kind == SEGMENTS:
            self._map(numbers[::2], numbers[1::2], received_descriptors(ancillary))
            numbers = []
        return kind, first, numbers

    def _map(self, segments: list[int], sizes: list[int], descriptors: list[int]) -> None:
        try:
            if len(descriptors) != len(segments):
                raise OSError(
                    f"{len(segments)} descriptors of shared memory were sent and "
                    f"{len(descriptors)} arrived: this process has too many open files; raise the "
                    'limit (ulimit -n), or pass transport="inline"'
                )
            for segment, size, descriptor in zip(segments, sizes, descriptors, strict=True):
                self.mappings[segment] = Mapping(descriptor, size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def has(self, handle: PayloadHandle) -> bool:
        """Return whether a payload is there."""
        mapping = self.mappings.get(handle.segment)
        fits = mapping is not None and handle.offset + handle.nbytes <= mapping.size
        return fits and handle.nbytes > 0 and self.book.may_read(handle)

    def view(self, segment: int, serials: set[int]) -> memoryview:
        """Return a segment's bytes, writable, of which these payloads will be used."""
        self._views += 1
        number = self._views
        self.in_use[number] = serials

        def ended(inherited: bool) -> None:
            self._let_go.append((number, serials, inherited))  # at any moment: `turn` does the rest

        mapping = self.mappings[segment]
        return memoryview(watched_view(mapping, mapping.size, ended)).cast("B")

    def fileno(self) -> int:
        """Return the descriptor to poll: if it is readable, there is something to hear."""
        return self._socket.fileno()

    @property
    def owes(self) -> bool:
        """True if the worker has asked what is not answered, or was not sent."""
        return self.book.owes or bool(self._unsent)

    def answer(self, arrived: Iterable[PayloadHandle]) -> None:
        """Answer what the worker has asked; `arrived`: handles that have not been used yet."""
        if not self.ended:
            try:
                self._answer(arrived)
            except OSError:
                self.ended = True

    def hear(self) -> None:
        """Read all packets that the worker has sent."""
        try:
            self._hear()
        except BlockingIOError:
            return
        except OSError:
            self.ended = True  # nobody writes any more to what is mapped

    def _hear(self) -> None:
        while not self.ended:
            kind, first, numbers = self._receive()
            if kind == ASK:
                self.book.ask(first, numbers)
            elif kind == RETIRED:
                for segment in numbers:
                    self.mappings.pop(segment, None)

    def _answer(self, arrived: Iterable[PayloadHandle]) -> None:
        while self._let_go:
            number, serials, inherited = self._let_go.popleft()
            del self.in_use[number]
            self._spoiled |= serials if inherited else set()
        if self.book.owes:
            used = set[int]().union(*self.in_use.values(), (each.serial for each in arrived))
            done = self.book.answers(used)
            codes = [serial << 1 | (serial in self._spoiled) for serial in done]
            self._spoiled.difference_update(done)
            self._unsent.extend(packets(ANSWER, 0, codes))
        while self._unsent:
            try:
                self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            self._unsent.popleft()

    def __del__(self) -> None:
        self._socket.close()


class Borrower:
    """A rank's access to the memory of all workers whose doors are in a directory."""

    def __init__(self, directory: str, name: bytes) -> None:
        """`name` is the rank's as a peer of the balancer."""
        self._directory = directory
        self._name = name
        self._lent: dict[int, _LentMemory] = {}
        # What polls the connections, and their tokens by descriptor; None when some have changed.
        self._polled: tuple[select.poll, dict[int, int]] | None = None

    def views(self, handles: Sequence[PayloadHandle | None]) -> list[memoryview | None] | None:
        """Return the payloads, None for a handle that is None; None if not all can be read.

        The tensors made of them are writable, and keep the memory until they are gone.
        """
        by_segment: dict[tuple[int, int], set[int]] = {}
        for handle in handles:
            if handle is not None:
                if not self._has(handle):
                    return None
                by_segment.setdefault((handle.token, handle.segment), set()).add(handle.serial)
        segments = {
            (token, segment): self._lent[token].view(segment, serials)
            for (token, segment), serials in by_segment.items()
        }
        return [
            None if h is None else segments[h.token, h.segment][h.offset : h.offset + h.nbytes]
            for h in handles
        ]

    def knock(self) -> None:
        """Connect to the workers whose doors are here, and do not wait for their answers.

        They come while samples are decoded; later, a rank would wait for them with a batch. Of many
        workers it may read few, and connects to each when its first payload comes.
        """
        doors = doors_in(self._directory)
        for token in doors if len(doors) <= MOST_DOORS else ():
            if token not in self._lent:
                self._connect(token)

    def turn(self, arrived: Iterable[PayloadHandle]) -> None:
        """Answer workers; `arrived` are the handles of microbatches that are not unpacked yet."""
        self._hear()
        handles: list[PayloadHandle] | None = None
        for token, lent in list(self._lent.items()):
            if not (lent.owes or lent.ended):
                continue
            handles = list(arrived) if handles is None else handles
            mine = [handle for handle in handles if handle.token == token]
            lent.answer(mine)
            if lent.ended and not mine:
                self._forget(token)  # its memory goes with the last tensor

    def rest(self) -> None:
        """Answer what has been asked; where much is mapped, leave the workers until the next use.

        Nothing that has arrived is going to be read.
        """
        self.turn(())
        mapped = [each.size for lent in self._lent.values() for each in lent.mappings.values()]
        if sum(mapped) > MOST_RESTING:
            self.close()

    def close(self) -> None:
        """Give back all memory that no tensor refers to."""
        for lent in self._lent.values():
            lent.mappings.clear()  # a tensor keeps its own, and the connection
        self._polled = None
        self._lent.clear()

    def _hear(self) -> None:
        """Hear the workers that have sent something; to try one in vain costs an exception."""
        if not self._lent:
            return
        if self._polled is None:
            tokens = {lent.fileno(): token for token, lent in self._lent.items()}
            poller = select.poll()
            for descriptor in tokens:
                poller.register(descriptor, select.POLLIN)
            self._polled = poller, tokens
        poller, tokens = self._polled
        for descriptor, _ in poller.poll(0):
            token = tokens[descriptor]
            if self._is_known(token):
                self._lent[token].hear()

    def _forget(self, token: int) -> None:
        """Drop a connection; it is closed with the last view."""
        self._polled = None
        del self._lent[token]

    def _has(self, handle: PayloadHandle) -> bool:
        token = handle.token
        known = self._is_known(token)
        if known and handle.segment not in self._lent[token].mappings:
            self._lent[token].hear()  # it may have been announced since
            # If an exception was raised while it was: over a new connection it comes.
            known = handle.segment in self._lent[token].mappings or self._lent[token].ended
        if not known:
            self._connect(token)
            if not self._is_known(token):
                return False  # it has ended
        return self._lent[token].has(handle)

    def _connect(self, token: int) -> None:
        """Connect to a worker, if it has not ended; else remove its door."""
        self._polled = None
        try:
            self._lent[token] = _LentMemory(door_of(self._directory, token), self._name)
        except ConnectionRefusedError:
            # Doors of all workers there ever were would be tried, until they are too many.
            remove_door(self._directory, token)
        except (FileNotFoundError, ConnectionError, TimeoutError):
            pass

    def _is_known(self, token: int) -> bool:
        """Return whether there is a connection to a worker; wait until it can be used."""
        lent = self._lent.get(token)
        if lent is None or lent.is_known:
            return lent is not None
        try:
            lent.await_known()
        except (ConnectionError, TimeoutError):
            self._forget(token)
        except BaseException:
            self._forget(token)
            raise
        return lent.is_known
