"""Checks this machine before a job starts: versions, processors, shared memory; and stores."""

import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from ...workers.arena.memory import find_memory_file_fault
from ...workers.sources.urls import parse_scheme, shown
from ...workers.stores.files import list_urls
from ...workers.stores.obstore_store import is_installed
from .figures import GIB, Finding, judge

# Read of a store to see how fast one connection is.
PART = 4 << 20


def examine_installation() -> list[Finding]:
    """Return the findings about this machine, before a job starts on it."""
    processors = min(len(os.sched_getaffinity(0)), _cpu_quota() or float("inf"))
    return [
        judge("python", f"{platform.python_version()} ({platform.machine()}, {platform.system()})"),
        *judge_packages(requires("counterpoise") or [], _installed),
        *judge_machine(processors, find_memory_file_fault(), _free_bytes("/dev/shm")),
    ]


def judge_machine(processors: float, why_no_arena: str, shm_bytes: int | None) -> Iterator[Finding]:
    """Yield the findings about a machine.

    processors: those that this process may use, of which a control group may allow a part.
    why_no_arena: why batches cannot come in our shared memory. shm_bytes: free in /dev/shm.
    """
    yield judge(
        "processors",
        f"{processors:g} usable",
        warn=processors < 2 and "give the job more than one: workers run beside the trainer",
    )
    yield judge(
        "transport",
        f"inline: {why_no_arena}" if why_no_arena else "arena (shared memory that is used again)",
        warn=why_no_arena and "torch carries batches, and a balancer samples: it is slower",
    )
    # torch's own workers put batches there.
    yield judge(
        "/dev/shm",
        "missing" if shm_bytes is None else f"{shm_bytes / GIB:.1f} GiB free",
        warn=(shm_bytes is None and "mount a tmpfs there: torch's workers need it")
        or ((shm_bytes or 0) < GIB and "start the container with --shm-size=8g or --ipc=host"),
    )


def judge_packages(
    requirements: list[str], installed: Callable[[str], str | None]
) -> Iterator[Finding]:
    """Yield a finding for each required package and its lowest version. Extras are left out."""
    for line in requirements:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?", line.strip())
        if match is None:
            continue
        name, least = match[1], match[2] or "0"
        version = installed(name)
        advice = f"pip install '{name}>={least}'"
        too_old = version is not None and _numbers(version) < _numbers(least)
        yield judge(name, version or "not installed", bad=(version is None or too_old) and advice)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that a version starts with."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else (0,)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_quota() -> float | None:
    """Return the processors that the control group allows, None without a limit."""
    try:
        quota, _, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").partition(" ")
    except OSError:
        return None
    return int(quota) / int(period) if quota.isdecimal() else None


def _free_bytes(folder: str) -> int | None:
    try:
        statistics = os.statvfs(folder)
    except OSError:
        return None
    return statistics.f_bavail * statistics.f_frsize


def examine_store(url: str) -> list[Finding]:
    """Return the findings about the shards at a URL, a folder or a pattern; OSError as reading."""
    files = list_urls(url)
    size = sum(file.size for file in files)
    since = time.perf_counter()
    files[0].read_range(0, 1)
    answer_s = time.perf_counter() - since
    part = min(PART, files[0].size)
    since = time.perf_counter()
    files[0].read_range(0, part)
    rate = part / 1e6 / (time.perf_counter() - since)
    slow = parse_scheme(url) == "s3" and not is_installed()
    return [
        judge("shards", f"{len(files)} of {size / 1e9:.3g} GB: {shown(url)}"),
        judge(
            "requests",
            f"{1e3 * answer_s:.0f} ms each, {rate:.0f} MB/s on one connection",
            warn=slow and "pip install obstore: a fifth of the CPU time of a request",
        ),
    ]
