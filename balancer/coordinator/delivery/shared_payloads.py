"""Payloads that lie in the memory of workers: the coordinator has their handles, and no bytes.

A worker writes the payloads of a lease side by side into its memory, and announces these *runs*.
Ranks of its machine read them there: then it may write there again only when the coordinator has
freed the run, and all ranks that were sent its handle say that they do not read it. Other ranks
pull them: what they have acknowledged they have a copy of, and what is freed the worker forgets. So
every run that was announced is freed once: when nobody needs any of its payloads any more, whether
they were delivered, dropped, or never wanted.
"""

import itertools
from collections.abc import Iterable
from operator import attrgetter

import msgspec

from ...protocol.messages import FreeSlots, PayloadHandle, PayloadServer

# What loops over many payloads ask for, without a line of Python for each.
RUN = attrgetter("run")


class SharedRun:
    """A run of payloads in a worker's memory.

    readers: the peers that were sent its handle. server: whence ranks pull it, None if they read
    it. payloads: how many it was announced with. idle_bytes: of those that nobody needs any more.
    """

    __slots__ = (
        "_needed",
        "handle",
        "idle_bytes",
        "owner",
        "payloads",
        "readers",
        "server",
        "worker",
    )

    def __init__(
        self,
        worker: bytes,
        handle: PayloadHandle,
        owner: "SharedPayloads",
        server: PayloadServer | None = None,
    ) -> None:
        """`owner` has all runs, and is told when nobody needs this one."""
        self.worker, self.handle, self.owner, self.server = worker, handle, owner, server
        self.readers: set[bytes] = set()
        self.payloads = self.idle_bytes = self._needed = 0

    def payload(self, offset: int, nbytes: int) -> "SharedPayload":
        """Return a payload in it, which is to be freed."""
        self.add(1)
        return SharedPayload(self, offset, nbytes)

    def add(self, payloads: int) -> None:
        """Count payloads in it, which are to be freed."""
        self.payloads += payloads
        self._needed += payloads

    def let_go(self, nbytes: int, payloads: int = 1) -> None:
        """Count payloads as needed no longer, `nbytes` in all; with the last the run is freed."""
        self._needed -= payloads
        if self._needed:
            self.idle_bytes += nbytes
            self.owner.idle_bytes += nbytes
        else:
            self.owner.free(self)


class SharedPayload(msgspec.Struct, gc=False, eq=False):
    """A payload in a run: its place there. is_held: it is, or was, part of the epoch's run.

    parts: it is one of so many parts of a microbatch that a worker has laid out.

    Who asks whether a payload is one compares types: isinstance() with a class of msgspec's takes
    several times as long to say no.
    """

    run: SharedRun
    offset: int
    nbytes: int
    is_held: bool = False
    is_freed: bool = False
    parts: int = 1

    def free(self) -> None:
        """Record that nobody needs it any more."""
        if not self.is_freed:
            self.is_freed = True
            self.run.let_go(self.nbytes)


class SharedPayloads:
    """The runs that workers have announced and that are not freed.

    idle_bytes: of payloads that nobody needs, in runs of which others are needed.
    """

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._known: dict[bytes, dict[int, SharedRun]] = {}
        # Serials by worker and readers, and the workers of which some are new.
        self._freed: dict[bytes, dict[frozenset[bytes], list[int]]] = {}
        self._lately: dict[bytes, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def announce(
        self, worker: bytes, handle: PayloadHandle, server: PayloadServer | None = None
    ) -> SharedRun | None:
        """Return a worker's run, None if it is known: the message was repeated.

        server: where ranks pull payloads with the server's token; others lie in shared memory.
        """
        own = self._known.setdefault(worker, {})
        if handle.serial in own:
            return None
        is_pulled = server is not None and server.token == handle.token
        run = SharedRun(worker, handle, self, server if is_pulled else None)
        own[handle.serial] = run
        return run

    def free(self, run: SharedRun) -> None:
        """Free a run without needed payloads; its worker is told, unless that was forgotten."""
        self.idle_bytes -= run.idle_bytes
        run.idle_bytes = 0
        own = self._known.get(run.worker, {})
        if own.get(run.handle.serial) is run:
            del own[run.handle.serial]
            self.free_unknown(run.worker, run.handle, frozenset(run.readers))

    def free_unknown(
        self, worker: bytes, handle: PayloadHandle, readers: frozenset[bytes] = frozenset()
    ) -> None:
        """Free what a worker has announced in vain: its message came too late, or is not wanted."""
        self._freed.setdefault(worker, {}).setdefault(readers, []).append(handle.serial)
        self._lately[worker] = None

    def forget_worker(self, worker: bytes) -> None:
        """Forget a worker's runs: it is gone, or frees them all when it comes back."""
        self._known.pop(worker, None)

    def freed_lately(self) -> list[bytes]:
        """Return, once, the workers of whose runs some were freed."""
        lately, self._lately = self._lately, {}
        return list(lately)

    def all_freed(self) -> list[bytes]:
        """Return the workers that are to be told of freed runs."""
        return list(self._freed)

    def take_freed(self, worker: bytes) -> tuple[FreeSlots, ...]:
        """Return, once, what a worker is to be told."""
        freed = self._freed.pop(worker, {})
        return tuple(
            FreeSlots(tuple(serials), tuple(sorted(readers))) for readers, serials in freed.items()
        )


def free_all(payloads: Iterable[SharedPayload]) -> None:
    """Record that nobody needs these payloads any more; those of a run side by side at once."""
    for run, own in itertools.groupby(payloads, RUN):
        number, nbytes = 0, 0
        for payload in own:
            if not payload.is_freed:
                payload.is_freed = True
                number += 1
                nbytes += payload.nbytes
        if number:
            run.let_go(nbytes, number)


def size_of(payload: object) -> int:
    """Return the bytes of a payload, wherever they are.

    >>> size_of(b"pixels")
    6
    """
    if type(payload) is SharedPayload:
        return payload.nbytes
    return memoryview(payload).nbytes  # type: ignore[arg-type]
