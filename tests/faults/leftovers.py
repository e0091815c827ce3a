"""Finds what ended processes left behind: processes, sockets, shared memory, files."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
LISTENING = "0A"
MEMORY_FILE = "/memfd:counterpoise"
# Kernel and peers need a moment to release what a killed process had.
WITHIN_S = 5.0
LOOK_S = 0.02


def settled(look: Callable[[], list[str]], within_s: float = WITHIN_S) -> list[str]:
    """Return what is left as soon as that is nothing, or when the time is over."""
    deadline = time.monotonic() + within_s
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return left


def processes(mark: str, but: int = 0) -> list[str]:
    """Return the processes that have `mark` in their environment, but for one."""
    return [f"process {pid}" for pid in _all_pids() if pid != but and _has_mark(pid, mark)]


def listeners(port: int) -> list[str]:
    """Return the tcp socket that listens on a port, if there is one."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in _lines(Path("/proc/net", table))[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.append(f"a socket listens on port {port}")
    return found


def unix_sockets(folder: Path) -> list[str]:
    """Return the unix sockets below a folder: files, and sockets that are bound there."""
    # os.walk passes over a folder that is removed while it looks, as rglob does not.
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    files = {str(path) for path in paths if _is_socket(path)}
    bound = {words[7] for line in _lines(Path("/proc/net/unix")) if len(words := line.split()) > 7}
    return sorted(f"socket {name}" for name in files | _below(bound, folder))


def temporary_files(folder: Path) -> list[str]:
    """Return what lies in a folder for temporary files."""
    return sorted(f"temporary {path.name}" for path in folder.iterdir())


def segments() -> set[str]:
    """Return the names in shared memory that may be ours, or torch's for us.

    Other tests run meanwhile, and some kill processes that have semaphores of multiprocessing.
    """
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    return {name for name in names if name.startswith(("counterpoise", "torch_"))}


def shared_memory(before: set[str]) -> list[str]:
    """Return the segments that are new, and that no living process has open."""
    new = segments() - before
    if new:
        new -= {name for name in new if _is_in_use(SHARED_MEMORY / name)}
    return sorted(f"shared memory {name}" for name in new)


def memory_of(process: int | str) -> list[int]:
    """Return the inodes of our memory files that a process has mapped or open."""
    mapped = Path("/proc", str(process), "maps").read_text().splitlines()
    found = [int(line.split()[4]) for line in mapped if MEMORY_FILE in line]
    for link in Path("/proc", str(process), "fd").iterdir():
        try:
            if str(link.readlink()).startswith(MEMORY_FILE):
                found.append(link.stat().st_ino)
        except OSError:
            continue
    return found


def memory_files(inodes: set[int]) -> list[str]:
    """Return the processes that still have one of these memory files: its memory is not free."""
    found = []
    for pid in _all_pids() if inodes else ():
        try:
            kept = inodes.intersection(memory_of(pid))
        except OSError:
            continue
        if kept:
            found.append(f"process {pid} has {len(kept)} memory files")
    return found


def descriptors(pid: int) -> list[str]:
    """Return what a process has open."""
    found = []
    for link in Path("/proc", str(pid), "fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue
    return found


def more_descriptors(pid: int, before: list[str], whose: str) -> list[str]:
    """Return what a process has open in addition to so many before."""
    now = descriptors(pid)
    more = len(now) - len(before)
    names = sorted(set(now) - set(before))[:5]
    return [f"{more} file descriptors of {whose} more than before, of {names}"] if more > 0 else []


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _has_mark(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return False


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _below(names: set[str], folder: Path) -> set[str]:
    return {name for name in names if name.startswith(f"{folder}/")}


def _is_in_use(path: Path) -> bool:
    """Whether a living process has a file mapped or open."""
    for pid in _all_pids():
        try:
            mapped = str(path) in Path("/proc", str(pid), "maps").read_text()
            if mapped or str(path) in descriptors(pid):
                return True
        except OSError:
            continue
    return not path.exists()
