"""Memory, descriptors and threads of a tree of processes, by their part in a loader."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from .processes import tree

PARTS = ("trainer", "balancer", "workers")
# Names that our processes give themselves; those of torch's kind have none.
_NAMES = {"cp-balancer": "balancer"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that the processes of one part use together.

    nbytes: memory that is not of files, of which processes that share some have each their share
    (PSS). A file's pages, such as a library's, count for more when another program ends that had
    them too.
    """

    processes: int = 0
    nbytes: int = 0
    descriptors: int = 0
    threads: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.processes + other.processes,
            self.nbytes + other.nbytes,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
        )


def usage_by_part(trainer: int) -> dict[str, Usage]:
    """Return what a trainer, by its process id, and all processes below it use.

    Those that end meanwhile are left out.
    """
    found: dict[str, Usage] = {}
    for pid in tree(trainer):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
            part = "trainer" if pid == trainer else part_of(pid)
            found[part] = found.get(part, Usage()) + _usage(pid)
    return found


def part_of(pid: int) -> str:
    """Return "balancer", "supervisor" or "workers"; FileNotFoundError if the process has ended."""
    return _NAMES.get(Path(f"/proc/{pid}/comm").read_text().strip(), "workers")


def _usage(pid: int) -> Usage:
    """Return what one process uses; KeyError for one that has ended and is not waited for yet."""
    files = Path(f"/proc/{pid}")
    lines = (files / "smaps_rollup").read_text().splitlines()[1:]
    sizes = dict(line.removesuffix(" kB").split(":") for line in lines)
    return Usage(
        processes=1,
        nbytes=1024 * (int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"])),
        descriptors=len(list((files / "fd").iterdir())),
        threads=len(list((files / "task").iterdir())),
    )
