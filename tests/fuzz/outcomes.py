"""Runs one target of fuzzing many times, each from its own seed, and counts what came of it."""

import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

DEADLINE_S = 30.0
SHOWN = 20

# right: what was delivered is what should be; refused: an error that names what is wrong; unclear:
# any other error; silent: wrong, and no error; hung: nothing within DEADLINE_S.
Result = Literal["right", "refused", "unclear", "silent", "hung"]
GOOD: tuple[Result, ...] = ("right", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run: `what` was done, and `detail` of what followed."""

    result: Result
    what: str
    detail: str = ""


# What a target does with a seed's generator.
Trial = Callable[[random.Random], Outcome]


class Hung(BaseException):
    """The deadline has passed; no `except Exception` takes it for an error of the product."""


@dataclass
class Report:
    """The outcomes of a target's runs."""

    target: str
    first: int
    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every run was right or a clear error."""
        return not self.failures

    def add(self, seed: int, outcome: Outcome) -> None:
        """Count an outcome; the first bad ones are kept with their seeds."""
        self.runs += 1
        self.outcomes[outcome.result] += 1
        self.by_kind[f"{outcome.what.partition(':')[0]}: {outcome.result}"] += 1
        if outcome.result not in GOOD and len(self.failures) < SHOWN:
            self.failures.append(
                {"seed": seed, "result": outcome.result, "what": outcome.what}
                | {"detail": outcome.detail}
            )

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counts = {name: self.outcomes[name] for name in (*GOOD, "unclear", "silent", "hung")}
        return {
            "target": self.target, "first_seed": self.first, "runs": self.runs,
            "deadline_s": DEADLINE_S, "outcomes": counts, "good": self.good,
            "by_kind": dict(sorted(self.by_kind.items())), "failures": self.failures,
        }  # fmt: skip


def run_target(name: str, trial: Trial, runs: int, first: int = 0) -> Report:
    """Return the report of `runs` trials, from the seed `first` on; each has a deadline."""
    report = Report(name, first)
    former = signal.signal(signal.SIGALRM, _ring)
    try:
        for seed in range(first, first + runs):
            signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
            try:
                outcome = trial(random.Random(f"{name} {seed}"))
            except Hung:
                outcome = Outcome("hung", f"seed {seed}", traceback.format_exc(limit=-6))
            except Exception:
                # A target takes the errors that it expects: this is one that nobody foresaw.
                outcome = Outcome("unclear", f"seed {seed}", traceback.format_exc(limit=-6))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            report.add(seed, outcome)
    finally:
        signal.signal(signal.SIGALRM, former)
    return report


def _ring(_: int, __: FrameType | None) -> None:
    raise Hung
