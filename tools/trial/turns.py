"""Measures loaders in turns: each takes a few seconds, in one order and then in the other.

So what else the machine does falls on all of them, and the range of the turns says which
differences are none. Every turn begins with new workers, whose first batches come at once and are
not counted; the beginning of another epoch, where a turn is longer than one, is.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ...workers.sources.failures import describe_error
from ..console.reporting import spread

ROUNDS, LEAST_ROUNDS = 6, 3
# Ratios this near to 1 are no difference, whatever their range.
LEAST_DIFFERENCE = 0.05
TORCH, SAME = "torch", "no difference"
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoaderTurn:
    """One turn: samples a second, seconds to the first batch, the trainer's CPU seconds a batch."""

    rate: float
    first_s: float
    cpu_s: float


@dataclass(slots=True)
class Contender:
    """A loader that is measured.

    make: returns a new one; its argument, `skips`, says whether broken samples are left out. start:
    makes one whose first batch counts in place of theirs. stops: the first error that would have
    ended training; failed: why nothing could be measured.
    """

    name: str
    make: Callable[[bool], Any]
    turns: list[LoaderTurn] = field(default_factory=list)
    stops: str = ""
    failed: str = ""
    skips: bool = False
    start: Callable[[bool], Any] | None = None

    def median(self, part: str) -> float:
        """Return the median of the turns' `part`."""
        return float(statistics.median(getattr(turn, part) for turn in self.turns))


def take_turns(
    contenders: Sequence[Contender], batch_size: int, workers: int, seconds: float,
    show_turn: Callable[[str], None], clock: Clock = time.perf_counter, *,
    least: int = LEAST_ROUNDS, most: int = ROUNDS,
) -> None:  # fmt: skip
    """Give the contenders turns for some seconds, at least and at most so many each."""
    ends = clock() + seconds
    each_s = seconds / (most * len(contenders))
    number = 0
    while number < least or (number < most and clock() < ends):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            if not contender.failed:
                show_turn(contender.name)
                _take_turn(contender, batch_size, workers, each_s, clock)
        number += 1


def _take_turn(
    contender: Contender, batch_size: int, workers: int, seconds: float, clock: Clock
) -> None:
    """Add a turn, or why there is none; broken samples are left out from where they end it."""
    error = ""
    try:
        first_s = contender.turns[0].first_s if contender.turns and contender.start else None
        if contender.start and first_s is None:
            with _open_loader(contender.start(contender.skips)) as loader:
                began = clock()
                next(iter(loader))
                first_s = clock() - began
        with _open_loader(contender.make(contender.skips)) as loader:
            turn = _measure_turn(loader, batch_size, workers, seconds, clock)
        contender.turns.append(turn if first_s is None else replace(turn, first_s=first_s))
    except Exception as raised:
        error = last_line(raised)
    if error and not contender.skips:
        contender.stops, contender.skips = error, True
        _take_turn(contender, batch_size, workers, seconds, clock)
    else:
        contender.failed = error


@contextmanager
def _open_loader(loader: Any) -> Iterator[Any]:
    """Give a loader, and end its workers: an iterator that is left would do it in those to come."""
    try:
        yield loader
    finally:
        if hasattr(loader, "close"):
            loader.close()
        gc.collect()


def _measure_turn(
    loader: Any, batch_size: int, workers: int, seconds: float, clock: Clock
) -> LoaderTurn:
    began, began_cpu = clock(), time.process_time()
    batches = _batches(loader)
    try:
        next(batches)
    except StopIteration:
        raise ValueError("it has no batch") from None
    first_s = clock() - began
    longest_s = max(seconds / 2, seconds - first_s)
    since, since_cpu, counted, warming = began, began_cpu, 1, workers
    for _ in batches:
        now = clock()
        counted += 1
        if warming:  # the first batches of all workers
            warming -= 1
            since, since_cpu, counted = now, time.process_time(), 0
        elif now - since > longest_s and (counted > workers or now - since > 4 * longest_s):
            break
    taken, cpu = clock() - since, time.process_time() - since_cpu
    return LoaderTurn(counted * batch_size / max(taken, 1e-9), first_s, cpu / max(1, counted))


def _batches(loader: Any) -> Iterator[Any]:
    """Yield batches, of one epoch after the other; nothing of an empty one."""
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch


def last_line(error: Exception) -> str:
    """Return what an error says in one line: a worker's has the traceback before it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    is_workers = "Traceback (most recent call last)" in str(error)
    text = str(error) if isinstance(error, ValueError) else describe_error(error)
    return lines[-1] if is_workers else " ".join(text.split())


def compare(contender: Contender, baseline: Contender) -> dict[str, Any]:
    """Return the ratio of samples a second of each round, and in words whether they differ.

    They do where all rounds say so, and the median by LEAST_DIFFERENCE.
    """
    ratios = [a.rate / b.rate for a, b in zip(contender.turns, baseline.turns, strict=False)]
    ratio: dict[str, Any] = spread(ratios)
    is_apart = abs(ratio["median"] - 1) >= LEAST_DIFFERENCE and len(ratios) >= LEAST_ROUNDS
    words = SAME
    if is_apart and ratio["low"] > 1:
        words = "faster"
    elif is_apart and ratio["high"] < 1:
        words = "slower"
    return {**ratio, "says": words}


def figures(contender: Contender) -> Mapping[str, Any]:
    """Return a contender's figures, units in their names; only `failed` where it has none."""
    if not contender.turns:
        return {"failed": contender.failed, "stops": contender.stops}
    return {
        "samples_per_s": spread([turn.rate for turn in contender.turns]),
        "first_batch_s": contender.median("first_s"),
        "trainer_cpu_ms_per_batch": 1e3 * contender.median("cpu_s"),
        "rounds": len(contender.turns),
        "stops": contender.stops,
        "failed": contender.failed,
    }
