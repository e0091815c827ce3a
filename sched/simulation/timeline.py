"""Timelines: programs with times, in integer nanoseconds, made by `simulate`.

The bubbles of a rank are its idle times within the makespan. Each idle nanosecond has exactly one
cause, so the causes add up to the whole:

- communication: the pass after the gap waited for a transfer, not for work;
- warm-up: before the rank's first backward pass; cool-down: after its last forward pass (if the
  last forward comes before the first backward, as in GPipe, the time between them is warm-up);
- imbalance: of the remaining idle time, at most the difference between this rank's work and that
  of the busiest rank;
- steady: the rest.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

from ..ir.program import Pass

Curve = tuple[tuple[int, int], ...]


class Slot(NamedTuple):
    """A pass with its times. On a communicator's lane the pass's stage is meaningless."""

    what: Pass
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Bubbles:
    """A rank's idle nanoseconds by cause."""

    warmup_ns: int = 0
    steady_ns: int = 0
    cooldown_ns: int = 0
    imbalance_ns: int = 0
    communication_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Return the idle time of all causes."""
        return sum(int(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Timeline:
    """A program with the times of its passes and collectives, its bubbles and its memory.

    Args:
        name: Of the schedule.
        placement: The rank that holds each stage.
        ranks: Each rank's passes with their times, in order.
        lanes: By communicator, its collectives in order.
        makespan_ns: The end of the last of all.
        bubbles: Each rank's idle time by cause.
        memory: Each rank's use as (ns, bytes) steps, each valid until the next, from ns 0.
    """

    name: str
    placement: tuple[int, ...]
    ranks: tuple[tuple[Slot, ...], ...]
    lanes: dict[str, tuple[Slot, ...]]
    makespan_ns: int
    bubbles: tuple[Bubbles, ...]
    memory: tuple[Curve, ...]

    @property
    def work_ns(self) -> tuple[int, ...]:
        """Return each rank's busy time."""
        return tuple(self.makespan_ns - idle.total_ns for idle in self.bubbles)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Return each rank's highest memory use."""
        return tuple(max((held for _, held in curve), default=0) for curve in self.memory)

    @property
    def bubble_ratios(self) -> tuple[float, ...]:
        """Return each rank's idle share of the makespan; 0 for an empty program."""
        return tuple(idle.total_ns / max(1, self.makespan_ns) for idle in self.bubbles)

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share over all ranks."""
        return sum(self.bubble_ratios) / max(1, len(self.bubbles))
