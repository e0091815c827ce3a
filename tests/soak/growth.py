"""Measures what processes hold and what a step costs them: nothing may grow with what is done.

What a step costs is CPU time, in units of a piece of work that is done beside each turn: a machine
that gets busy makes both dearer. So a loaded machine changes the ratio by a fifth, not by a half.
"""

import contextlib
import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

# A step may cost so many times the CPU time of a step after the warm-up.
MOST = 1.5
# Of all turns, a fifth at the beginning is compared with a fifth at the end.
PARTS = 5
# Texts in a state, which are packed, are so many characters longer or shorter.
STATE_VARIES = 64
_WORK = [{"number": number, "list": [number]} for number in range(1500)]


@dataclass(frozen=True)
class Held:
    """What a process holds: none of it may grow.

    entries: of the process group's store; groups: process groups; tensors: bytes of all that Python
    knows of; kept: files in a folder by name, with their sizes; state: the size of a state_dict;
    series: of metrics, with their labels.
    """

    files: int
    threads: int
    children: int
    entries: int = 0
    groups: int = 0
    tensors: int = 0
    kept: tuple[tuple[str, int], ...] = ()
    state: int = 0
    series: frozenset[str] = frozenset()

    def differences(self, after: "Held") -> list[str]:
        """Return what is not the same later, a line each."""
        names = [each.name for each in fields(self)]
        pairs = [(name, getattr(self, name), getattr(after, name)) for name in names]
        if new := sorted(after.series - self.series):  # there are many that were there before
            pairs[-1] = ("series", "none of these", new[:9])
        return [
            f"{name}: {before}, then {now}"
            for name, before, now in pairs
            if (abs(before - now) > STATE_VARIES if name == "state" else before != now)
        ]


def held_by(process: int, series: frozenset[str] = frozenset()) -> Held:
    """Return what another process holds, as far as the system tells."""
    at = Path("/proc", str(process))
    threads, children = [*at.joinpath("task").iterdir()], list[str]()
    for each in threads:
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            children += (each / "children").read_text().split()
    return Held(
        len([*at.joinpath("fd").iterdir()]), len(threads), len(children), series=series
    )  # fmt: skip


def held(
    folder: Path | None = None, state: Any = None, series: frozenset[str] | None = None
) -> Held:
    """Return what this process holds.

    folder: of the data, with all that is kept beside them; state: a state_dict; series: of metrics.
    """
    gc.collect()
    found = held_by(os.getpid())
    kept = sorted(each for each in folder.rglob("*") if each.is_file()) if folder else []
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if issubclass(type(each), torch.Tensor) and each.layout == torch.strided
    }
    return Held(
        found.files,
        found.threads,
        found.children,
        entries=group_store().num_keys() if dist.is_initialized() else 0,
        groups=len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0,
        tensors=sum(storages.values()),
        kept=tuple((each.name, each.stat().st_size) for each in kept),
        state=_size(state),
        series=series or frozenset(),
    )


def series_of(text: str) -> frozenset[str]:
    """Return the series of a page for Prometheus: names with labels."""
    lines = text.splitlines()
    return frozenset(line.rpartition(" ")[0] for line in lines if not line.startswith("#"))


def cpu_of(process: int) -> float:
    """Return the CPU seconds of another process, all its threads together."""
    return time.clock_gettime((~process << 3) | 2)  # as clock_getcpuclockid(3) says


def soak(
    turn: Callable[[], int],
    look: Callable[[], Held] | Mapping[str, Callable[[], Held]],
    turns: int = 300,
    warm: int = 20,
    clocks: Mapping[str, Callable[[], float]] | None = None,
) -> None:
    """Do turns; after the first ones nothing may grow. A turn returns how many steps it had.

    look: returns what this process holds, or each of several, by name; clocks: whose CPU time
    counts, that of this thread by default.
    """
    looks = look if isinstance(look, Mapping) else {"this process": look}
    clocks = clocks or {"this thread": time.thread_time}
    for _ in range(warm):
        turn()
    before = {name: each() for name, each in looks.items()}
    costs = [_cost(turn, clocks) for _ in range(turns - warm)]
    grown = [
        f"{name}: {line}" for name in looks for line in before[name].differences(looks[name]())
    ] + dearer(costs)
    assert not grown, f"after {turns} turns, {warm} of them to warm up: {grown}"


def dearer(costs: Sequence[Mapping[str, float]]) -> list[str]:
    """Return whose steps cost more at the end, a line each; costs: of each turn's step."""
    part = len(costs) // PARTS
    found = []
    for name in costs[0]:
        first, last = (
            median(each[name] for each in some) for some in (costs[:part], costs[-part:])
        )
        if last > MOST * first:
            found.append(f"CPU of {name} a step: {first:.2g} units, then {last:.2g}")
    return found


def _cost(turn: Callable[[], int], clocks: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the CPU time of a turn's step by each clock, over that of the same work each time."""
    since = {name: clock() for name, clock in clocks.items()}
    steps = turn()
    spent = {name: clock() - since[name] for name, clock in clocks.items()}
    began = time.thread_time()
    json.loads(json.dumps(_WORK))
    unit = time.thread_time() - began
    return {name: seconds / steps / unit for name, seconds in spent.items()}


def group_store() -> Any:
    """Return the store of the default process group, without prefixes."""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _size(state: Any) -> int:
    """Return how much a state holds: characters of texts, and one for each number."""
    if isinstance(state, dict):
        return sum(len(str(key)) + _size(value) for key, value in state.items())
    if isinstance(state, list | tuple):
        return sum(map(_size, state))
    return len(state) if isinstance(state, str | bytes) else 1
