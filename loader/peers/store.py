"""Reads and writes the store where torch's processes met, on a connection of its own.

A request is answered at once: what has no value yet is found out by `check`, never by a `get` that
waits. So the connection of the process group is free for its own use, and ours can be polled.
"""

import contextlib
import functools
import hashlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group

_T = TypeVar("_T")


# What a socket's timeout is at most; 0 is none.
MAX_TIMEOUT_S = 1e9
# Of each value in an entry that many append to: whose it is, and its size.
_HEADER = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """A store where ranks meet, and who this process is there.

    store: as torch.distributed.Store. label: tells this group of processes from others; processes:
    the ranks in the job of all data-parallel ranks. has_ended: returns True if the connection to
    the store is closed.
    """

    store: Any
    label: str
    rank: int
    processes: tuple[int, ...]
    has_ended: Callable[[], bool] = lambda: False

    @property
    def process(self) -> int:
        """This process' rank in the job."""
        return self.processes[self.rank]


def open_point(place: Place, timeout_s: float) -> MeetingPoint:
    """Return where the ranks of a place meet, on a new connection; ValueError without a group.

    A request that is not answered within the timeout fails, and the connection with it.
    """
    if not has_process_group():
        raise ValueError(
            f"this process is {place}, and without torch.distributed ranks cannot find each other: "
            "call torch.distributed.init_process_group() before the loader is first used"
        )
    store, members, name = find_store(place)
    if len(members) != place.ranks or members[place.played[0]] != dist.get_rank():
        raise ValueError(
            f"this process is {place}, and process {dist.get_rank()} of the group of processes "
            f"{members}: leave ranks=, or give the group of these ranks"
        )
    connected, has_ended = _own_connection(store, timeout_s)
    return MeetingPoint(connected, f"counterpoise/{name}", place.played[0], members, has_ended)


def find_store(place: Place) -> tuple[Any, tuple[int, ...], str]:
    """Return the store of a place's process group, the members, and what tells both from others."""
    group: Any = place.group if place.group is not None else dist.group.WORLD
    members = place.members or tuple(range(dist.get_world_size()))
    if hasattr(group, "get_group_store"):
        store = group.get_group_store()
    else:  # public, but not in older torch
        store = dist.distributed_c10d._get_default_store()
    return store, members, f"{group.group_name}/{digest(json.dumps(members))}"


def _own_connection(store: Any, timeout_s: float) -> tuple[Any, Callable[[], bool]]:
    """Return the same store with another connection: requests of one are answered in turn.

    And a function that returns True once the other end has closed it.
    """
    innermost = store
    while hasattr(innermost, "underlying_store"):
        innermost = innermost.underlying_store
    if not hasattr(innermost, "port"):
        return store, lambda: False  # files and memory need no connection
    before = _find_sockets(innermost.port)
    if hasattr(store, "clone"):
        connected = store.clone()
    else:
        address = innermost.host, innermost.port
        connected = type(innermost)(*address, is_master=False, wait_for_workers=False)
    new = _find_sockets(innermost.port) - before
    if len(new) != 1:  # another thread connects, too: whose is whose is not known
        return connected, lambda: False
    (descriptor,) = new
    _limit_answers(descriptor, timeout_s)
    return connected, functools.partial(_has_ended, descriptor)


def _find_sockets(port: int) -> set[int]:
    """Return the descriptors of sockets that are connected to a port."""
    descriptors = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if str(link.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as connection:
                    if connection.getpeername()[1:2] == (port,):
                        descriptors.add(int(link.name))
    return descriptors


def _limit_answers(descriptor: int, timeout_s: float) -> None:
    """Let a connection fail that is not answered: torch's own timeouts are for values, not these.

    Without it a rank that runs the store and is stopped would hold up all others for ever.
    """
    timeout_s = min(timeout_s, MAX_TIMEOUT_S)
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _has_ended(descriptor: int) -> bool:
    """Return whether the other end of a connection has closed it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


def digest(text: str) -> str:
    """Return 16 hex digits of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True)
class StoreState:
    """What is known of a connection to a store.

    has_ended: returns True if the other end has closed it. owner: who runs it. asking_since: when
    the request under way began, 0 if there is none. lost: why nothing can be asked any more;
    answers could be those of earlier requests.
    """

    has_ended: Callable[[], bool] = field(default=lambda: False)
    owner: str = "process 0"
    clock: Callable[[], float] = time.monotonic
    asking_since: float = 0.0
    lost: str = ""


class Entries:
    """The entries below a prefix of a store. LoaderError once the store is lost."""

    def __init__(self, store: Any, prefix: str, state: StoreState | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self.state = state or StoreState()
        # Some stores (of files, MPI's, those of users) cannot append.
        has_more = getattr(store, "has_extended_api", None)
        self._appends = has_more is not None and has_more() and hasattr(store, "append")

    def below(self, prefix: str) -> "Entries":
        """Return the entries below a longer prefix."""
        return Entries(self._store, f"{self._prefix}/{prefix}", self.state)

    def add(self, key: str) -> int:
        """Count one more, and return how many there are."""
        return int(self._ask(self._store.add, self._key(key), 1))

    def set(self, key: str, value: str | bytes) -> None:
        """Set an entry."""
        as_bytes = value.encode() if isinstance(value, str) else value
        self._ask(self._store.set, self._key(key), as_bytes)

    def has(self, key: str) -> bool:
        """Return whether an entry is there."""
        return bool(self._ask(self._store.check, [self._key(key)]))

    def get(self, key: str) -> bytes:
        """Return the value of an entry that is there."""
        return bytes(self._ask(self._store.get, self._key(key)))

    def find(self, key: str) -> bytes | None:
        """Return the value of an entry, None if it is not there."""
        return self.get(key) if self.has(key) else None

    def append(self, key: str, number: int, value: bytes) -> None:
        """Add a numbered value to an entry, of less than 8 MiB: torch's server takes no more."""
        if self._appends:
            packed = _HEADER.pack(number, len(value)) + value
            self._ask(self._store.append, self._key(key), packed)
        else:
            self.set(f"{key}/{number}", value)

    def has_some(self, key: str) -> bool:
        """Return False if nothing was appended to an entry, as far as one request can tell."""
        return not self._appends or self.has(key)

    def collect(self, key: str, numbers: int) -> dict[int, bytes]:
        """Return what was appended to an entry that is there, by number, of each the last."""
        if self._appends:
            return dict(_unpack(self.get(key)))
        values = {number: self.find(f"{key}/{number}") for number in range(numbers)}
        return {number: value for number, value in values.items() if value is not None}

    def delete(self, *keys: str, numbers: int = 0) -> None:
        """Delete entries, also those to which so many may have appended."""
        for key in keys:
            self._ask(self._store.delete_key, self._key(key))
            for number in range(0 if self._appends else numbers):
                self._ask(self._store.delete_key, self._key(f"{key}/{number}"))

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _ask(self, request: Callable[..., _T], *args: Any) -> _T:
        # Asked first: torch would write its stack to the standard error.
        if not self.state.lost and self.state.has_ended():
            self._lose("the connection was closed")
        if self.state.lost:
            raise LoaderError(self.state.lost)
        self.state.asking_since = self.state.clock()
        try:
            return request(*args)
        except RuntimeError as error:  # of torch: the connection is lost, or was not answered
            self._lose(str(error).partition("Exception raised")[0].strip().rstrip("."))
            raise LoaderError(self.state.lost) from error
        finally:
            self.state.asking_since = 0.0

    def _lose(self, reason: str) -> None:
        self.state.lost = (
            f"the store of the process group, where ranks meet, does not answer any more ({reason})"
            f". It is run by {self.state.owner}, unless a launcher runs it: has that ended, or is "
            "it stopped?"
        )


def _unpack(packed: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered values of an entry."""
    at = 0
    while at < len(packed):
        number, size = _HEADER.unpack_from(packed, at)
        at += _HEADER.size + size
        yield number, packed[at - size : at]
