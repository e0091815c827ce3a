"""What the parts of the GPU bench share: their task, their rows, and the time that they have."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from ..runtime.rank_processes import RankProcesses

Row = Mapping[str, str]  # by column
# For starting processes, compiling kernels, and NCCL's first connections.
START_S = 240.0


@dataclass(frozen=True, slots=True)
class Task:
    """A part's task: type and number of devices, seconds to measure, and the name of the device.

    On the CPU models are tiny, and two processes stand for two devices.
    """

    device: str
    devices: int
    seconds: float
    name: str
    shards: str | None = None

    @property
    def small(self) -> bool:
        """Whether there is no GPU."""
        return self.device == "cpu"

    def start(self, make: Callable[..., Any], ranks: int, *given: Any) -> RankProcesses:
        """Start processes with a device each, which hold `make(rank, self, *given)`."""
        limit_s = START_S + self.seconds
        return RankProcesses(
            ranks, make, self, *given, device=self.device, loads=True, limit_s=limit_s
        )


@dataclass(frozen=True, slots=True)
class Part:
    """One table of the report. devices: the least that it needs."""

    title: str
    run: Callable[[Task], Sequence[Row]]
    devices: int = 1


def rounds(seconds: float) -> Iterator[int]:
    """Yield numbers of rounds until the time is over; at least one."""
    end, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < end:
        yield number
        number += 1


def seconds_of(run: Callable[[], Any], device: str) -> float:
    """Return how long a call takes until the device has done it."""
    synchronize(device)
    begun = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - begun


def synchronize(device: str) -> None:
    """Wait until a device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def measured_turns(
    calls: Mapping[str, Callable[[], float]], seconds: float
) -> dict[str, list[float]]:
    """Return the results of calls that take turns, after one that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in rounds(seconds):
        for name, call in calls.items():
            found[name].append(call())
    return found


def slowest(processes: RankProcesses, name: str, *given: Any) -> float:
    """Return the longest of the times that all ranks return from a method."""
    return float(max(processes.call(name, *given)))


def turns_of(
    processes: RankProcesses, method: str, names: Sequence[str], seconds: float
) -> dict[str, list[float]]:
    """Return what the slowest rank took, by the method's argument, in turns."""
    calls = {name: partial(slowest, processes, method, name) for name in names}
    return measured_turns(calls, seconds)


def spread_ms(seconds: Sequence[float]) -> str:
    """Return the median in ms, and the range.

    >>> spread_ms([0.002, 0.001, 0.004])
    '2.00 (1.00 to 4.00)'
    """
    middle, least, most = (1e3 * each for each in (median(seconds), min(seconds), max(seconds)))
    return f"{middle:.2f} ({least:.2f} to {most:.2f})"


def over(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median ratio of times in the same round.

    >>> over([1.0, 3.0], [2.0, 3.0])
    '0.75'
    """
    return f"{median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def failure(error: BaseException) -> str:
    """Return what went wrong, in one line: the last of a rank's traceback, or of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[-1] if lines else ""
    return f"failed: {told if isinstance(error, RuntimeError) and told else repr(error)}"[:300]
