"""Defines the ranks that have met, what their processes are doing, and which share a host."""

import os
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# What is said of a rank that is stopped, or will never post again, and so much of its error.
STOPPED = ", which is stopped"
ENDED, CLOSED = ", which has ended", ", which has closed its loader"
SHOWN_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Peer:
    """A data-parallel rank: its process' rank in the job, and where that runs."""

    rank: int
    process: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process}, host {self.host}, pid {self.pid})"


@dataclass(frozen=True)
class Roster:
    """All ranks in order, and for each the name of the host whose memory it shares.

    >>> ranks = [Peer(0, 0, "a", 10), Peer(1, 1, "b", 10), Peer(2, 2, "a", 11)]
    >>> roster = Roster(tuple(ranks), ("a#10", "b#10", "a#10"), {"a#10": 2, "b#10": 1})
    >>> roster.hosts
    ((0, 2), (1,))
    >>> roster.leader_of(0).rank
    2
    """

    peers: tuple[Peer, ...]
    shared: tuple[str, ...]
    leaders: Mapping[str, int]

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host."""
        found: dict[str, list[int]] = {}
        for rank, name in enumerate(self.shared):
            found.setdefault(name, []).append(rank)
        return tuple(map(tuple, found.values()))

    def host_of(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)

    def leader_of(self, host: int) -> Peer:
        """Return the rank that speaks for a host."""
        return self.peers[self.leaders[self.shared[self.hosts[host][0]]]]


class Process:
    """Another process of this host, watched by a descriptor: its number may not be given anew."""

    def __init__(self, pid: int) -> None:
        """OSError if there is no such process any more."""
        self._pid = pid
        self._watched = os.fdopen(os.pidfd_open(pid), "rb", buffering=0)

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        poll = select.poll()  # a new one: two threads may ask
        poll.register(self._watched.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def state(self) -> str:
        """Return ", which has ended", ", which is stopped" or ""."""
        if self.has_ended():
            return ENDED
        try:
            state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""
        return STOPPED if state in "Tt" else ""

    def close(self) -> None:
        """Watch it no longer."""
        self._watched.close()


def own_failure() -> str:
    """Return the error that this process is about to end with, in brackets; "" if there is none.

    Where nobody has caught it, that is found out when the interpreter ends.
    """
    error = sys.exception() or getattr(sys, "last_value", None)
    if error is None or isinstance(error, SystemExit | StopIteration | GeneratorExit):
        return ""
    return f" ({type(error).__name__}: {error})"[:SHOWN_CHARACTERS]


def shared_host() -> str:
    """Return what processes have in common that can open each other's memory; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""


def listed(names: Iterable[Any], most: int = 8) -> str:
    """Return some names as text.

    >>> listed(range(4), most=2)
    '0, 1 and 2 more'
    """
    texts: Sequence[str] = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
