"""Payloads that lie in the memory of workers: the coordinator has their handles, and no bytes.

A worker writes a payload into its memory and announces it. Ranks of its machine read it there: then
it may write there again only when the coordinator has freed the payload, and all ranks that were
sent its handle say that they do not read it. Other ranks pull it: what they have acknowledged they
have a copy of, and what is freed the worker forgets. So every payload that was announced is freed
once: when nobody needs it any more, whether it was delivered, dropped, or never wanted.
"""

from dataclasses import dataclass, field

from ...protocol.messages import FreeSlots, PayloadHandle, PayloadServer


@dataclass(slots=True, eq=False)
class SharedPayload:
    """A payload in a worker's memory; `readers` are the peers that were sent its handle.

    is_held: it is, or was, part of the run. server: whence ranks pull it, None if they read it.
    """

    worker: bytes
    handle: PayloadHandle
    owner: "SharedPayloads"
    readers: set[bytes] = field(default_factory=set)
    is_held: bool = False
    server: PayloadServer | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.handle.nbytes

    def free(self) -> None:
        """Tell the worker that the payload is not needed any more."""
        self.owner.free(self)


class SharedPayloads:
    """The payloads that workers have announced and that are not freed."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[int, SharedPayload]] = {}
        # Serials by worker and readers, and the workers of which some are new.
        self._freed: dict[bytes, dict[frozenset[bytes], list[int]]] = {}
        self._lately: dict[bytes, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def announce(
        self, worker: bytes, handle: PayloadHandle, server: PayloadServer | None = None
    ) -> SharedPayload | None:
        """Return a worker's payload, None if it is known: the message was repeated.

        server: where ranks pull payloads with the server's token; others lie in shared memory.
        """
        own = self._known.setdefault(worker, {})
        if handle.serial in own:
            return None
        is_pulled = server is not None and server.token == handle.token
        payload = SharedPayload(worker, handle, self, server=server if is_pulled else None)
        own[handle.serial] = payload
        return payload

    def free(self, payload: SharedPayload) -> None:
        """Free a payload; nothing if its worker was forgotten, or it is freed already."""
        own = self._known.get(payload.worker, {})
        if own.get(payload.handle.serial) is payload:
            del own[payload.handle.serial]
            self.free_unknown(payload.worker, payload.handle, frozenset(payload.readers))

    def free_unknown(
        self, worker: bytes, handle: PayloadHandle, readers: frozenset[bytes] = frozenset()
    ) -> None:
        """Free what a worker has announced in vain: its message came too late, or is not wanted."""
        self._freed.setdefault(worker, {}).setdefault(readers, []).append(handle.serial)
        self._lately[worker] = None

    def forget_worker(self, worker: bytes) -> None:
        """Forget a worker's payloads: it is gone, or frees them all when it comes back."""
        self._known.pop(worker, None)

    def freed_lately(self) -> list[bytes]:
        """Return, once, the workers of whose payloads some were freed."""
        lately, self._lately = self._lately, {}
        return list(lately)

    def all_freed(self) -> list[bytes]:
        """Return the workers that are to be told of freed payloads."""
        return list(self._freed)

    def take_freed(self, worker: bytes) -> tuple[FreeSlots, ...]:
        """Return, once, what a worker is to be told."""
        freed = self._freed.pop(worker, {})
        return tuple(
            FreeSlots(tuple(serials), tuple(sorted(readers))) for readers, serials in freed.items()
        )


def size_of(payload: object) -> int:
    """Return the bytes of a payload, wherever they are.

    >>> size_of(b"pixels")
    6
    """
    if isinstance(payload, SharedPayload):
        return payload.nbytes
    return memoryview(payload).nbytes  # type: ignore[arg-type]


def let_go(payload: object) -> None:
    """Free a payload that lies in a worker's memory; others go with their last reference."""
    if isinstance(payload, SharedPayload):
        payload.free()
