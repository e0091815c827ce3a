"""Checks this machine before a job starts: versions, memory, processors, files, clocks, ports.

Each `judge_*` function gets a measured value and returns a finding, so tests can pass the values of
any machine; `examine_installation` measures and calls them all.
"""

import os
import platform
import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from ...balancer.transport.keys import ROLES, SECRET, AllowList, peer_keys, server_keys
from ...workers.arena.memory import why_no_memory_files
from .figures import GIB, Finding, judge

# The longest path of a socket (Linux: 108 with the closing 0), and the characters that are added
# to the folder for temporary files.
_LONGEST_PATH, _BELOW = 107, 40
# Below these a job may fail: open files (a socket and a pipe per worker), and room for payloads.
_FILES, _SHM_BYTES, _MEMORY_BYTES = 1024, GIB, 4 * GIB
_CLOCK_S = 2.0
_FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")


def examine_installation(
    listen: str, root: Path | None = None, keys: Path | None = None
) -> list[Finding]:
    """Return the findings about this machine, before a job starts on it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    temporary = tempfile.gettempdir()
    return [
        judge_python(sys.version_info[:2]),
        *judge_packages(requires("counterpoise") or [], _installed),
        judge_shadow(find_spec("sched").origin if find_spec("sched") else None),  # type: ignore[union-attr]
        judge_processors(len(os.sched_getaffinity(0)), _cpu_quota(), os.getloadavg()[0]),
        judge_memory(available_bytes()),
        judge_way(os.environ.get("WORLD_SIZE", "1")),
        judge_transport(why_no_memory_files()),
        judge_shared_memory(_free_bytes("/dev/shm")),
        judge_files(soft, hard),
        judge_temporary(temporary, os.access(temporary, os.W_OK | os.X_OK)),
        judge_port(listen, _port_error(listen)),
        judge_clock_source(
            _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        *_folder_clocks([Path(temporary), *([root] if root else [])]),
        *([judge_keys(keys)] if keys else []),
    ]


def judge_python(found: tuple[int, ...]) -> Finding:
    """Return the finding about Python's version."""
    text = ".".join(map(str, found))
    return judge(
        "python",
        f"{text} ({platform.machine()}, {platform.system()})",
        bad=found < (3, 11) and "install Python 3.11 or later",
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


def judge_shadow(origin: str | None) -> Finding:
    """Return a bad finding if our folder hides the standard library's `sched`."""
    ours = Path(__file__).resolve().parent.parent / "sched"
    hidden = origin is not None and Path(origin).resolve().parent == ours
    return judge(
        "import path",
        "the checkout's folder hides the standard library's sched" if hidden else "in order",
        bad=hidden and "start Python elsewhere, or take the checkout out of PYTHONPATH",
    )


def judge_processors(allowed: int, quota: float | None, load: float) -> Finding:
    """Return the finding about the processors that this process may use, and their load."""
    usable = allowed if quota is None else min(float(allowed), quota)
    text = f"{usable:g} usable, load {load:.1f}"
    return judge(
        "processors",
        text,
        warn=(load > usable + 1 and "other processes use them: workers will be slower")
        or (usable < 2 and "give the job more than one: workers run beside the trainer"),
    )


def judge_memory(available: int | None) -> Finding:
    """Return the finding about memory that is free or can be freed."""
    if available is None:
        return judge("memory", "unknown")
    return judge(
        "memory",
        f"{available / GIB:.1f} GiB available",
        warn=available < _MEMORY_BYTES and "lower buffer_bytes and num_workers",
    )


def judge_way(ranks: str) -> Finding:
    """Return the finding about which way a loader goes from here, and why.

    ranks: WORLD_SIZE, which torchrun sets. The choice itself is made in loader/assembly.py.
    """
    alone = ranks in ("", "1")
    return judge(
        "loop",
        ("local" if alone else f"local, {ranks} ranks that meet in their process group's store")
        + ": a loader's own workers load and collate, unless balancer= names a balancer (remote), "
        "or processes share a data-parallel rank (tp, cp, pp: an embedded balancer)",
    )


def judge_transport(why_no_arena: str) -> Finding:
    """Return the finding about how what workers make comes to a trainer here, and why."""
    if not why_no_arena:
        return judge("transport", "arena (shared memory that is used again)")
    return judge(
        "transport",
        f"inline: {why_no_arena}",
        warn="torch carries batches, and a balancer samples: nothing else changes",
    )


def judge_shared_memory(free: int | None) -> Finding:
    """Return the finding about /dev/shm, where torch's own workers put batches."""
    if free is None:
        return judge("/dev/shm", "missing", warn="mount a tmpfs there: torch's workers need it")
    return judge(
        "/dev/shm",
        f"{free / GIB:.1f} GiB free",
        warn=free < _SHM_BYTES and "start the container with --shm-size=8g or --ipc=host",
    )


def judge_files(soft: int, hard: int) -> Finding:
    """Return the finding about the number of files that a process may open."""
    if soft == resource.RLIM_INFINITY:
        return judge("open files", "no limit")
    return judge(
        "open files",
        f"at most {soft}",
        warn=soft < _FILES and f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}",
    )


def judge_temporary(folder: str, writable: bool) -> Finding:
    """Return the finding about the temporary folder, where the embedded balancer's socket is."""
    room = _LONGEST_PATH - _BELOW - len(folder)
    return judge(
        "temporary files",
        folder,
        bad=not writable and "set TMPDIR to a folder that you may write to",
        warn=room < 0 and "its path is too long for a socket: sockets go to /tmp; set TMPDIR=/tmp",
    )


def judge_port(address: str, error: str) -> Finding:
    """Return a warning if a balancer cannot listen at an address."""
    return judge(
        "address",
        f"{address}: {error or 'free'}",
        warn=error and f"choose another, or ask who uses it: counterpoise doctor {address}",
    )


def judge_clock_source(name: str | None) -> Finding:
    """Return the finding about the kernel's clock source; only the processor's counter is fast."""
    fast = name is None or name in _FAST_CLOCKS
    return judge(
        "clock",
        name or "unknown",
        warn=not fast and "slow to read: boot with clocksource=tsc if the processor allows it",
    )


def judge_folder_clock(folder: str, ahead_s: float) -> Finding:
    """Return the finding about a file server's clock: indexes are matched by their files' times."""
    return judge(
        f"clock of {folder}",
        f"{ahead_s:+.1f} s from this machine's",
        warn=abs(ahead_s) > _CLOCK_S and "synchronize both with one time server (chrony, ntpd)",
    )


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


def _port_error(address: str) -> str:
    """Return why a balancer cannot listen at an address, "" if it can. Only TCP is tried."""
    match = re.fullmatch(r"tcp://\[?([^\]]*)\]?:(\d+)", address)
    if match is None:
        return "" if address.startswith("ipc://") else "not an address such as tcp://127.0.0.1:5555"
    host = "0.0.0.0" if match[1] == "*" else match[1]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, int(match[2])))
        except (OSError, OverflowError) as error:
            return str(getattr(error, "strerror", None) or error).lower()
    return ""


def _folder_clocks(folders: list[Path]) -> Iterator[Finding]:
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                before = time.time()
                file.write(b"x")
                file.flush()
                yield judge_folder_clock(str(folder), os.fstat(file.fileno()).st_mtime - before)
        except OSError as error:
            yield judge(f"clock of {folder}", f"not checked: {error.strerror or error}")
