"""Finds the memory that this process' control group may use, as containers are limited.

A group is limited by its own limit and by those of all groups that it is in. In a container the
path that /proc names may be the host's, and not be there: then the mounted root is the group.
"""

from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
# Version 1 says "no limit" by a number near this one, in whole pages.
_NO_LIMIT = 1 << 62


def refuse_budget_over_limit(buffer_bytes: int, limit: int | None) -> None:
    """Raise ValueError for a byte budget that is over the control group's limit, None for none.

    Without this the kernel would kill the trainer, or a worker, when the budget is used.
    """
    if limit is not None and buffer_bytes > limit:
        raise ValueError(
            f"buffer_bytes={buffer_bytes:,}, and all processes of this container (control group) "
            f"together may use {limit:,} bytes: give DataLoader(buffer_bytes={limit // 4}), say, "
            "or raise the container's memory limit"
        )


def memory_limit(mounted: Path = MOUNTED, groups: str | None = None) -> int | None:
    """Return the bytes that this process' control group may use; None where there is no limit.

    groups: the text of /proc/self/cgroup.
    """
    if groups is None:
        path = Path("/proc/self/cgroup")
        groups = path.read_text() if path.exists() else ""
    limits = [_limit(file) for line in groups.splitlines() for file in _files(mounted, line)]
    return min((limit for limit in limits if limit is not None), default=None)


def _files(mounted: Path, line: str) -> Iterator[Path]:
    """Yield the files with the limits of a group and of those around it, given a line of groups."""
    _, controllers, group = line.split(":", 2)
    if controllers and "memory" not in controllers.split(","):
        return
    root = mounted / "memory" if controllers else mounted
    name = "memory.limit_in_bytes" if controllers else "memory.max"
    inner = root / group.strip("/")
    for place in (inner, *inner.parents):
        if place.is_relative_to(root):
            yield place / name


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None
