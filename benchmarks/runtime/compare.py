"""Compare our runtime with torch's on one schedule: times in turns, bytes, gradients, own time."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from .. import rounded_spread
from .contenders import CONTENDERS, PipelineCase, Span
from .rank_processes import RankProcesses

Report = dict[str, Any]
Running = Mapping[str, RankProcesses]
# Many, since what a step costs besides its passes is divided among them too.
_IDLE_MICROBATCHES = 32


def compare(setting: PipelineCase, rounds: int, repeats: int) -> Report:
    """Return the report of one schedule. Ratios are torch's over ours: above 1, ours is better."""
    with started(setting) as running:
        report = bytes_and_errors(running) | step_times(running, rounds, repeats)
    tiny = replace(setting.sizes, tokens=1, hidden=8, words=8, microbatches=_IDLE_MICROBATCHES)
    with started(replace(setting, idle=True, sizes=tiny)) as running:
        report["us_per_pass"] = own_times(running, rounds)
    return report


@contextmanager
def started(setting: PipelineCase, limit_s: float | None = None) -> Iterator[Running]:
    """Start all contenders' processes, none of which runs until it is its turn."""
    with ExitStack() as stack:
        running = {}
        for name, make in CONTENDERS.items():
            made = RankProcesses(
                setting.sizes.ranks, make, setting, device=setting.device, limit_s=limit_s
            )
            running[name] = stack.enter_context(made)
            made.pause()
        yield running


def bytes_and_errors(running: Running) -> Report:
    """Return what contenders that have not run yet hold at most, and their gradients' errors."""
    report: Report = {}
    # The first step allocates what is kept for all others, so its peak comes first.
    for key, method in (("peak_bytes", "peak_bytes"), ("saved_bytes", "saved_bytes")):
        found = {name: _in_turn(one, method) for name, one in running.items()}
        report[key] = found
        report[f"{key}_ratio"] = round(max(found["torch"]) / max(found["ours"]), 3)
    report["max_relative_error"] = {
        name: max(_in_turn(one, "gradient_error")) for name, one in running.items()
    }
    return report


def step_times(running: Running, rounds: int, repeats: int) -> Report:
    """Return the times of steps in interleaved rounds: median, least and most."""
    wall: dict[str, list[float]] = {name: [] for name in running}
    cpu: dict[str, list[float]] = {name: [] for name in running}
    for name, one in _turns(running, rounds):
        spans = _in_turn(one, "steps", repeats)
        wall[name].append(statistics.median(map(_wall_ms, zip(*spans, strict=True))))
        cpu[name].append(statistics.median(map(_cpu_ms, zip(*spans, strict=True))))
    return {
        "step_ms": {name: rounded_spread(values, 2) for name, values in wall.items()},
        "time_ratio": rounded_spread(_ratios(wall), 3),
        "cpu_ratio": rounded_spread(_ratios(cpu), 3),
    }


def own_times(running: Running, rounds: int) -> Report:
    """Return the CPU time of a pass that does nothing, with and without foreign calls, in us."""
    measures: Mapping[str, tuple[str, bool]] = {
        "ours_outside": ("ours", True),
        "ours": ("ours", False),
        "torch": ("torch", False),
    }
    for one in running.values():
        _in_turn(one, "own_us", False)  # compiles programs, makes buffers
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, (contender, outside) in measures.items():
            found[name].append(statistics.mean(_in_turn(running[contender], "own_us", outside)))
    return {name: rounded_spread(values, 1) for name, values in found.items()}


def _turns(running: Running, rounds: int) -> Iterator[tuple[str, RankProcesses]]:
    """Yield the contenders, whose order changes with every round."""
    for number in range(rounds):
        yield from list(running.items())[:: -1 if number % 2 else 1]


def _in_turn(one: RankProcesses, method: str, *arguments: Any) -> list[Any]:
    with one.awake():
        return one.call(method, *arguments)


def _wall_ms(ranks: Sequence[Span]) -> float:
    """Return the time of a step from the first rank's start to the last one's end."""
    return (max(s.end_ns for s in ranks) - min(s.start_ns for s in ranks)) / 1e6


def _cpu_ms(ranks: Sequence[Span]) -> float:
    return sum(s.cpu_ns for s in ranks) / 1e6


def _ratios(found: Mapping[str, Sequence[float]]) -> list[float]:
    return [a / b for a, b in zip(found["torch"], found["ours"], strict=True)]
