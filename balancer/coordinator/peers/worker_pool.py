"""The workers that can be leased samples, and which of them have room for another lease.

Kept up to date by those who change a worker or its leases, so that no message has to walk all
workers.

A rank connects to each worker that has decoded something for it, so each worker has a *home*, a
place on the circle of all ranks: of the samples that are as urgent it takes those of the ranks
from there on. Homes are multiples of
the golden ratio: however many workers there are, they are spread evenly, and none moves when others
come and go.
"""

from collections.abc import Callable

from ..run.leases import LEASES_PER_WORKER
from .records import WorkerPeer

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class WorkerPool:
    """Workers: by name, those that can be leased samples, and by how many leases these have.

    >>> pool = WorkerPool()
    >>> pool.update(b"a", is_assignable=True)
    >>> leases = {b"a": 1}
    >>> pool.next_free(leases.__getitem__)
    b'a'
    >>> leases[b"a"] = 2
    >>> pool.note(b"a")
    >>> pool.next_free(leases.__getitem__) is None
    True
    """

    def __init__(self) -> None:
        self._by_name: dict[str, dict[bytes, WorkerPeer]] = {}
        self._assignable: dict[bytes, None] = {}
        # Workers that may have room, by the number of leases that they had when last looked at.
        self._free = tuple(dict[bytes, None]() for _ in range(LEASES_PER_WORKER))
        self._changed: dict[bytes, None] = {}
        # From 0 to 1; of the names of all workers there have been.
        self._homes: dict[str, float] = {}

    def add(self, worker: WorkerPeer) -> None:
        """Add a worker process that has said hello."""
        name = worker.hello.name
        self._by_name.setdefault(name, {})[worker.peer] = worker
        self._homes.setdefault(name, len(self._homes) * _GOLDEN_RATIO % 1)

    def remove(self, worker: WorkerPeer) -> None:
        """Remove a worker process."""
        named = self._by_name[worker.hello.name]
        del named[worker.peer]
        if not named:
            del self._by_name[worker.hello.name]
        self.update(worker.peer, is_assignable=False)
        for free in self._free:
            free.pop(worker.peer, None)

    def named(self, name: str) -> list[WorkerPeer]:
        """Return the worker processes of a name: one, but for those that replace each other."""
        return list(self._by_name.get(name, {}).values())

    @property
    def assignable(self) -> int:
        """The number of workers that can be leased samples: ready and not unresponsive."""
        return len(self._assignable)

    def update(self, peer: bytes, is_assignable: bool) -> None:
        """Record whether a worker can be leased samples now."""
        if is_assignable == (peer in self._assignable):
            return
        if is_assignable:
            self._assignable[peer] = None
        else:
            del self._assignable[peer]
        self.note(peer)

    def note(self, peer: bytes) -> None:
        """Note that the number of a worker's leases has changed."""
        self._changed[peer] = None

    def note_all(self) -> None:
        """Note that no worker has a lease any more."""
        self._changed.update(self._assignable)

    def next_free(self, count: Callable[[bytes], int]) -> bytes | None:
        """Return a worker with the fewest leases that may have another, None if there is none.

        `count` returns how many leases a worker has. It is returned again until that changes.
        """
        for peer in self._changed:
            self._place(peer, count(peer))
        self._changed.clear()
        return next((peer for free in self._free for peer in free), None)

    def home(self, name: str, ranks: int) -> int:
        """Return the rank at which a worker of a name is at home, of so many."""
        return int(self._homes[name] * ranks)

    def idle(self, count: Callable[[bytes], int]) -> list[bytes]:
        """Return the workers without a lease."""
        self.next_free(count)
        return list(self._free[0])

    def _place(self, peer: bytes, leases: int) -> None:
        for number, free in enumerate(self._free):
            if number == leases and peer in self._assignable:
                free.setdefault(peer)
            else:
                free.pop(peer, None)
