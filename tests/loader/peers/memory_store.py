"""A store in memory that counts requests and bytes, and refuses those that would wait."""

from collections import Counter
from collections.abc import Iterator

from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import join
from counterpoise.loader.peers.store import MeetingPoint


class MemoryStore:
    """As torch.distributed.HashStore, but a `get` of what is not there is an error.

    n_bytes: of keys, values and their lengths, as torch's TCPStore sends them.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.n_bytes = 0

    def has_extended_api(self) -> bool:
        """Say that it can append."""
        return True

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter."""
        self._count("add", key, b"8 bytes.")
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def set(self, key: str, value: bytes, /) -> None:
        """Set a key."""
        self._count("set", key, value)
        self.values[key] = value

    def append(self, key: str, value: bytes, /) -> None:
        """Add to the end of a value."""
        self._count("append", key, value)
        self.values[key] = self.values.get(key, b"") + value

    def get(self, key: str, /) -> bytes:
        """Return a value that is there; torch's sends that it would wait, too."""
        self._count("wait", key)
        self._count("get", key, self.values[key])
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have a value."""
        self._count("check", *keys)
        return all(key in self.values for key in keys)

    def delete_key(self, key: str, /) -> bool:
        """Delete a key."""
        self._count("delete_key", key)
        return self.values.pop(key, None) is not None

    def _count(self, request: str, *texts: str | bytes) -> None:
        self.requests[request] += 1
        # A byte for the request and one for the answer, the prefix of a process group, and 8 bytes
        # for each length.
        self.n_bytes += 2 + sum(len(text) + 8 + 16 * isinstance(text, str) for text in texts)


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Job:
    """Ranks of a loader in one process, on pretended hosts, that share a store and a clock."""

    def __init__(self, hosts: str) -> None:
        """hosts: a letter for each rank; a dot is a rank whose host is unknown."""
        self.store = MemoryStore()
        self.clock = Clock()
        self.hosts = hosts
        self._peers: list[Peers] = []

    def joining(
        self,
        rank: int,
        facts: dict[str, str] | None = None,
        name: str = "train",
        timeout_s: float = 60.0,
    ) -> Iterator[float]:
        """Return a rank's way to its peers, to be walked by the test."""
        point = MeetingPoint(self.store, "label", rank, tuple(range(len(self.hosts))))
        host, says = self.hosts[rank].strip("."), f"of {rank}"
        return join(point, name, facts or {}, timeout_s, host, says, self.clock)

    def meet(self, order: list[int] | None = None, name: str = "train") -> list[Peers]:
        """Return all ranks, met in some order."""
        ways = {rank: self.joining(rank, name=name) for rank in order or range(len(self.hosts))}
        ends = walk(ways, self.clock)
        peers = [peers for _, peers in sorted(ends.items()) if isinstance(peers, Peers)]
        assert len(peers) == len(self.hosts), ends
        self._peers += peers
        return peers

    @property
    def left(self) -> list[str]:
        """The entries of loaders, beside those that each process leaves of itself."""
        return [key for key in self.store.values if "/loader/" in key]

    def forget(self, peers: Peers) -> None:
        """Refer to some no longer."""
        self._peers.remove(peers)

    def close(self) -> None:
        """Close all that have met."""
        for peers in self._peers:
            peers.close()


def walk(ways: dict[int, Iterator[float]], clock: Clock) -> dict[int, Peers | Exception]:
    """Let ranks join in turn until each has met or failed; return what came of them."""
    ends: dict[int, Peers | Exception] = {}
    while len(ends) < len(ways):
        for rank, way in ways.items():
            if rank not in ends:
                try:
                    next(way)
                except StopIteration as end:
                    ends[rank] = end.value
                except (RuntimeError, ValueError) as error:
                    ends[rank] = error
        clock.now += 0.05
    return ends
