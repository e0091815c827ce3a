"""What became of a mutant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant; `by` is the first of the `tests` tests that failed."""

    outcome: str  # killed, survived, timeout
    by: str
    tests: int
    cpu_s: float
