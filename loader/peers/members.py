"""Defines the ranks that have met, and looks at the processes of this host."""

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# What is said of a rank that is stopped, or will never post again, and so much of its error.
STOPPED = ", which is stopped"
ENDED, CLOSED = ", which has ended", ", which has closed its loader"
SHOWN_CHARACTERS = 400


class Peer(NamedTuple):
    """A data-parallel rank: its process' rank in the job, and where that runs.

    machine: what processes share that can see each other, "" if unknown. begun: when the process
    did, in ticks of that machine: its number may be given anew.
    """

    rank: int
    process: int
    host: str
    pid: int
    machine: str = ""
    begun: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process}, host {self.host}, pid {self.pid})"

    @property
    def as_process(self) -> str:
        """Its name where ranks are shared."""
        return f"process {self.process} (host {self.host}, pid {self.pid})"

    def state(self) -> str:
        """Return ", which has ended", ", which is stopped" or "", for a process of this machine."""
        state, begun = _read_process(self.pid)
        if not state or state in "ZX" or begun != self.begun:
            return ENDED
        return STOPPED if state in "Tt" else ""


def this_process(rank: int, process: int, machine: str) -> Peer:
    """Return what others are told of this process."""
    pid = os.getpid()
    return Peer(rank, process, socket.gethostname(), pid, machine, _read_process(pid)[1])


def _read_process(pid: int) -> tuple[str, str]:
    """Return a process' state, a letter, and when it has begun; "" if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def this_machine() -> str:
    """Return 16 letters that processes share which see each other's state; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except OSError:
        return ""
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def own_failure() -> str:
    """Return the error that this process is about to end with, in brackets; "" if there is none.

    One that is not caught is known when the interpreter ends.
    """
    error = sys.exception() or getattr(sys, "last_value", None)
    if error is None or isinstance(error, SystemExit | StopIteration | GeneratorExit):
        return ""
    return f" ({type(error).__name__}: {error})"[:SHOWN_CHARACTERS]


def list_names(names: Iterable[Any], most: int = 8) -> str:
    """Return some names as text.

    >>> list_names(range(4), most=2)
    '0, 1 and 2 more'
    """
    texts: Sequence[str] = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
