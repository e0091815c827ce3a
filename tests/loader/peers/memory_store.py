"""A store in memory that counts requests, and refuses those that would wait."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import join
from counterpoise.loader.peers.store import MeetingPoint


class MemoryStore:
    """As torch.distributed.HashStore, but a `get` of what is not there is an error."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        # How often each value was read.
        self.reads: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter."""
        self.requests["add"] += 1
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def set(self, key: str, value: bytes, /) -> None:
        """Set a key."""
        self.requests["set"] += 1
        self.sizes[key] = len(value)
        self.values[key] = value

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return values that are there."""
        self.requests["multi_get"] += 1
        self.reads.update(keys)
        return [self.values[key] for key in keys]

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have a value."""
        self.requests["check"] += 1
        return all(key in self.values for key in keys)

    def delete_key(self, key: str, /) -> bool:
        """Delete a key."""
        self.requests["delete_key"] += 1
        return self.values.pop(key, None) is not None


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
        host = self.hosts[rank].strip(".")
        return join(point, name, facts or {}, timeout_s, host, self.clock)

    def meet(self, order: list[int] | None = None, name: str = "train") -> list[Peers]:
        """Return all ranks, met in some order."""
        ways = {rank: self.joining(rank, name=name) for rank in order or range(len(self.hosts))}
        found = walk(ways, self.clock)
        peers = [each for _, each in sorted(found.items()) if isinstance(each, Peers)]
        assert len(peers) == len(self.hosts), found
        self._peers += peers
        return peers

    def forget(self, peers: Peers) -> None:
        """Refer to some no longer."""
        self._peers.remove(peers)

    def close(self) -> None:
        """Close all that have met."""
        for each in self._peers:
            each.close()


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


def held_bytes(log: Any) -> int:
    """Return the memory that a RecordWriter's file has."""
    return os.fstat(log._file.fileno()).st_blocks * 512
