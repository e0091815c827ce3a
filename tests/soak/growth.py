"""Measures what a process holds and what a step costs it: nothing may grow with what is done."""

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

# A step may cost so many times the calls of a step after the warm-up.
MOST = 1.5


@dataclass(frozen=True)
class Held:
    """What a process holds: open files, threads, entries of the group's store, files and series."""

    files: int
    threads: int
    entries: int
    kept: tuple[tuple[str, int], ...]
    state: int
    series: int


def held(folder: Path | None = None, state: Any = None, series: Any = None) -> Held:
    """Return what this process holds now; state, series: what is to stay of one size.

    folder: of the data, in which files are.
    """
    gc.collect()
    found = sorted(folder.iterdir()) if folder is not None else []
    return Held(
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        threading.active_count(),
        _entries(),
        tuple((path.name, path.stat().st_size) for path in found),
        # Numbers get digits, and no more.
        len(json.dumps(state)) // 64 if state is not None else 0,
        len(series) if series is not None else 0,
    )


def _entries() -> int:
    if not dist.is_initialized():
        return 0
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    count: int = store.num_keys()
    return count


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls, of Python and of C, that this thread makes inside."""
    calls = [0]

    def count(_frame: Any, event: str, _argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def soak(turn: Callable[[], int], look: Callable[[], Held], turns: int, warm: int) -> None:
    """Do turns; after the first ones nothing may grow. A turn returns how many steps it had."""
    for _ in range(warm):
        turn()
    before = look()
    first = _cost(turn)
    for _ in range(turns - warm - 2):
        turn()
    last = _cost(turn)
    assert look() == before
    assert last <= MOST * first, f"calls a step: {first:.0f} after {warm} turns, then {last:.0f}"


def _cost(turn: Callable[[], int]) -> float:
    """Return the calls a step of two turns, the cheaper one: a wait takes some, too."""
    costs = []
    for _ in range(2):
        with counted() as calls:
            steps = turn()
        costs.append(calls[0] / steps)
    return min(costs)
