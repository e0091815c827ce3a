"""The processes below one, their part in a loader, and their CPU time."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Names that our processes give themselves; those of torch's kind have none.
_PARTS = {"cp-balancer": "balancer", "cp-supervisor": "supervisor"}


def tree(root: int) -> Iterator[int]:
    """Yield a process and all below it; those that end meanwhile may be left out."""
    yield root
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{root}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def part_of(pid: int) -> str:
    """Return "balancer", "supervisor" or "workers"; FileNotFoundError if the process has ended."""
    return _PARTS.get(Path(f"/proc/{pid}/comm").read_text().strip(), "workers")


def cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU seconds of other processes so far; ProcessLookupError if one has ended."""
    return sum(time.clock_gettime(_clock(each)) for each in processes)


def cpu_s_below(root: int) -> dict[int, float]:
    """Return the CPU seconds so far of each process below one, whatever loader started it."""
    found = {}
    for pid in tree(root):
        # one that has ended since it was listed: clock_gettime says EINVAL
        with contextlib.suppress(OSError):
            if pid != root:
                found[pid] = cpu_s([pid])
    return found


def _clock(process: int) -> int:
    return (~process << 3) | 2  # the kernel's number for the CPU clock of a process
