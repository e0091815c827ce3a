"""Checks this machine before a job starts: versions, memory, processors, files, keys; and stores.

`Machine` is what was measured, and `judge_machine` what that means, so that tests can judge any
machine; `examine_installation` does both.
"""

import math
import os
import platform
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from ...balancer.transport.keys import ROLES, SECRET, AllowList, peer_keys, server_keys
from ...workers.arena.memory import why_no_memory_files
from ...workers.sources.cache_files import kept_path
from ...workers.sources.urls import scheme_of, shown
from ...workers.stores.files import list_urls
from ...workers.stores.obstore_store import is_installed
from ...workers.stores.options import VARIABLE, StoreOptions
from .figures import GIB, Finding, judge

# The longest path of a socket (Linux: 108 with the closing 0), and the characters that are added
# to the folder for temporary files.
_LONGEST_PATH, _BELOW = 107, 40
# Below these a job may fail: open files (a socket and a pipe per worker), and room for payloads.
_FILES, _SHM_BYTES, _MEMORY_BYTES = 1024, GIB, 4 * GIB
# Read of a store to see how fast one connection is.
PART = 4 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured of a machine; by default one on which all is well.

    processors: those that this process may use, of which a control group allows `quota`. ranks:
    WORLD_SIZE, which torchrun sets. None: not known.
    """

    processors: int = 8
    quota: float | None = None
    load: float = 0.0
    memory_bytes: int | None = 64 * GIB
    ranks: str = "1"
    why_no_arena: str = ""
    shm_bytes: int | None = 8 * GIB
    open_files: int = 65536
    most_files: int = 65536
    temporary: str = "/tmp"
    is_writable: bool = True


def examine_installation(keys: Path | None = None) -> list[Finding]:
    """Return the findings about this machine, before a job starts on it."""
    temporary = tempfile.gettempdir()
    machine = Machine(
        len(os.sched_getaffinity(0)),
        _cpu_quota(),
        os.getloadavg()[0],
        available_bytes(),
        os.environ.get("WORLD_SIZE", "1"),
        why_no_memory_files(),
        _free_bytes("/dev/shm"),
        *resource.getrlimit(resource.RLIMIT_NOFILE),
        temporary,
        os.access(temporary, os.W_OK | os.X_OK),
    )
    python = f"{platform.python_version()} ({platform.machine()}, {platform.system()})"
    return [
        judge("python", python),
        *judge_packages(requires("counterpoise") or [], _installed),
        *judge_machine(machine),
        *([judge_keys(keys)] if keys else []),
    ]


def judge_machine(machine: Machine) -> Iterator[Finding]:
    """Yield the findings about a machine."""
    usable = min(float(machine.processors), machine.quota or math.inf)
    yield judge(
        "processors",
        f"{usable:g} usable, load {machine.load:.1f}",
        warn=(machine.load > usable + 1 and "other processes use them: workers will be slower")
        or (usable < 2 and "give the job more than one: workers run beside the trainer"),
    )
    free = machine.memory_bytes
    yield judge(
        "memory",
        "unknown" if free is None else f"{free / GIB:.1f} GiB available",
        warn=free is not None and free < _MEMORY_BYTES and "lower buffer_bytes and num_workers",
    )
    # The choice itself is made in loader/assembly.py.
    several = f", {machine.ranks} ranks that meet in their process group's store"
    yield judge(
        "loop",
        f"local{'' if machine.ranks in ('', '1') else several}: a loader's own workers load and "
        "collate, unless balancer= names a balancer (remote), or processes share a data-parallel "
        "rank (tp, cp, pp: an embedded balancer)",
    )
    why = machine.why_no_arena
    yield judge(
        "transport",
        f"inline: {why}" if why else "arena (shared memory that is used again)",
        warn=why and "torch carries batches, and a balancer samples: nothing else changes",
    )
    # torch's own workers put batches there.
    free = machine.shm_bytes
    yield judge(
        "/dev/shm",
        "missing" if free is None else f"{free / GIB:.1f} GiB free",
        warn=(free is None and "mount a tmpfs there: torch's workers need it")
        or ((free or 0) < _SHM_BYTES and "start the container with --shm-size=8g or --ipc=host"),
    )
    soft, hard = machine.open_files, machine.most_files
    is_bounded = soft != resource.RLIM_INFINITY
    yield judge(
        "open files",
        f"at most {soft}" if is_bounded else "no limit",
        warn=is_bounded and soft < _FILES and f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}",
    )
    # The embedded balancer's socket is there.
    is_long = len(machine.temporary) + _BELOW > _LONGEST_PATH
    yield judge(
        "temporary files",
        machine.temporary,
        bad=not machine.is_writable and "set TMPDIR to a folder that you may write to",
        warn=is_long and "its path is too long for a socket: sockets go to /tmp; set TMPDIR=/tmp",
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
        found = installed(name)
        advice = f"pip install '{name}>={least}'"
        too_old = found is not None and _numbers(found) < _numbers(least)
        yield judge(name, found or "not installed", bad=(found is None or too_old) and advice)


def judge_keys(folder: Path) -> Finding:
    """Return the finding about a balancer's, worker's or trainer's folder of keys."""
    try:
        role = find_role(folder)
        if role == "balancer":
            allowed = len(AllowList(server_keys(folder).allowed).roles())
            advice = (
                not allowed and "no peer is allowed: run counterpoise keygen FOLDER --worker NAME"
            )
            return judge("keys", f"a balancer's, {allowed} peers allowed", warn=advice)
        peer_keys(folder, role)
    except (OSError, ValueError) as error:
        return judge("keys", str(error), bad="see counterpoise keygen --help")
    return judge("keys", f"a {role}'s")


def find_role(folder: Path) -> str:
    """Return the role whose keys a folder holds. Raises OSError if it has no readable key."""
    words = (folder / SECRET).read_text(encoding="utf-8", errors="replace").split()
    return words[1] if len(words) > 1 and words[1] in ROLES else "trainer"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that a version starts with."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else (0,)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _cpu_quota() -> float | None:
    """Return the processors that the control group allows, None without a limit."""
    words = (_read("/sys/fs/cgroup/cpu.max") or "max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def available_bytes() -> int | None:
    """Return the bytes of memory that are free or can be freed, None if that is not known."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo") or "")
    amounts = [int(match[1]) * 1024] if match else []
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit and used and limit != "max":
        amounts.append(int(limit) - int(used))
    return min(amounts) if amounts else None


def _free_bytes(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def examine_store(url: str) -> list[Finding]:
    """Return the findings about the shards at a URL, a folder or a pattern; OSError as reading."""
    since = time.perf_counter()
    files = list_urls(url)
    listed_s = time.perf_counter() - since
    size, options = sum(file.size for file in files), StoreOptions.from_environment()
    since = time.perf_counter()
    files[0].read_at(0, 1)
    answer_s = time.perf_counter() - since
    part = min(PART, files[0].size)
    since = time.perf_counter()
    files[0].read_at(0, part)
    rate = part / 1e6 / (time.perf_counter() - since)
    kept = sum(kept_path(file, "index.npz").exists() for file in files)
    slow = scheme_of(url) == "s3" and not is_installed()
    return [
        judge("shards", f"{len(files)} of {size / 1e9:.3g} GB in {listed_s:.1f} s: {shown(url)}"),
        judge("requests", f"{1e3 * answer_s:.0f} ms each, {rate:.0f} MB/s on one connection"),
        judge("indexes", f"{kept} of {len(files)} kept here; others are made once, of headers"),
        judge(
            "client",
            "s3fs only" if slow else "as fast as there is one",
            warn=slow and "pip install obstore: a fifth of the CPU time of a request",
        ),
        judge(
            "reads ahead",
            f"{options.ahead / 1e6:.3g} MB, {options.requests} requests at a time ({VARIABLE})",
        ),
    ]
