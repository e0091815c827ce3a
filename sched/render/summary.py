"""Compute and format the key figures of a timeline, for pages, tables and reports."""

from dataclasses import astuple, dataclass

from ..simulation.timeline import Bubbles, Timeline


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """The unit of a timeline's memory: `size` of its numbers are one unit.

    `word` names several units, `single` one of them.
    """

    word: str = "bytes"
    size: int = 1
    single: str = "byte"


BYTES = MemoryUnit()
# Work, and the fields of Bubbles in their order.
CAUSES = ("work", "warm-up", "steady", "cool-down", "imbalance", "communication")


def bubble_words(idle: Bubbles) -> dict[str, int]:
    """Return a rank's idle nanoseconds under the words of CAUSES.

    >>> bubble_words(Bubbles(warmup_ns=3))["warm-up"]
    3
    """
    return dict(zip(CAUSES[1:], astuple(idle), strict=True))


def figures(timeline: Timeline, unit: MemoryUnit = BYTES) -> tuple[str, ...]:
    """Return the key figures in words: makespan, bubble, and peak memory if there is any."""
    words = [format_time(timeline.makespan_ns), f"bubble {100 * timeline.bubble_ratio:.1f} %"]
    if most := max(timeline.peak_bytes, default=0):
        words.append(f"peak {format_memory(most, unit)}")
    return tuple(words)


def format_time(ns: int) -> str:
    """Return a time in its largest unit of 1 or more.

    >>> format_time(1_500), format_time(24_000_000), format_time(0)
    ('1.5 µs', '24 ms', '0 ns')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns} ns"


def format_memory(held: int, unit: MemoryUnit = BYTES) -> str:
    """Return memory in binary multiples of bytes, or as a number of other units.

    >>> format_memory(3 * 2**29), format_memory(9, MemoryUnit("tiles", 2, "tile"))
    ('1.5 GiB', '4.5 tiles')
    """
    if unit.word != "bytes":
        word = unit.single if held == unit.size else unit.word
        return f"{_three_digits(held / unit.size)} {word}"
    value, name = float(held), "B"
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or name == "TiB":
            break
        value /= 1024
    return f"{_three_digits(value)} {name}"


def _three_digits(value: float) -> str:
    digits = 1 if value >= 100 else 2 if value >= 10 else 3
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
