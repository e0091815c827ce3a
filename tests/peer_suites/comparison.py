"""What two runs of one suite say: which tests count, pass, are excepted or fail."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .attached import ATTACHED

MOST_EXCEPTED = {"torchdata-dataloader": 5, "pytorch-dataloader": 5}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of one suite; counted are the tests that the control passes."""

    suite: str
    counted: int
    passed: int
    excepted: dict[str, str]  # test: why it may fail
    failed: dict[str, str]  # test: what its failure says
    wrong: tuple[str, ...]  # exceptions that are not needed, unknown, or too many
    notes: Mapping[str, int] = field(default_factory=dict)  # how often what happened to a trainer

    @property
    def good(self) -> bool:
        """Whether every counted test passes or is excepted, and every exception is needed."""
        return self.counted > 0 and not self.failed and not self.wrong

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


def compare(
    suite: str, control: dict[str, str], ours: dict[str, str], exceptions: dict[str, str],
    notes: Mapping[str, int] | None = None,
) -> Comparison:  # fmt: skip
    """Compare the outcomes of a suite's tests.

    exceptions: a reason for each test. notes: how many trainers have a loader of ours, and how many
    were refused it for a reason; None where it is torch's class that was replaced.
    """
    counted = [test for test, outcome in control.items() if outcome == "passed"]
    failing = {
        test: ours.get(test, "did not run") for test in counted if ours.get(test) != "passed"
    }
    wrong = [
        f"{test}: {'it passes' if test in counted else 'the control does not pass it'}"
        for test in exceptions
        if test not in failing
    ]
    most = MOST_EXCEPTED.get(suite, len(exceptions))
    if len(exceptions) > most:
        wrong.append(f"{len(exceptions)} exceptions are too many: at most {most} are allowed")
    if notes is not None and not notes.get(ATTACHED):
        wrong.append("no trainer had a loader of ours")
    return Comparison(
        suite=suite,
        notes=dict(notes or {}),  # asdict() makes other counts of a Counter
        counted=len(counted),
        passed=len(counted) - len(failing),
        excepted={test: why for test, why in exceptions.items() if test in failing},
        failed={test: text for test, text in failing.items() if test not in exceptions},
        wrong=tuple(wrong),
    )


def render(found: Comparison) -> str:
    """Return a comparison as text: a line of counts, and a line for each test to look at."""
    counts = f"{found.suite}: {found.passed} of {found.counted} that the control passes"
    if found.excepted:
        counts += f", {len(found.excepted)} excepted"
    lines = [counts]
    lines += [f"  FAILED {test}: {text[:200]}" for test, text in found.failed.items()]
    lines += [f"  excepted {test}: {why}" for test, why in found.excepted.items()]
    lines += [f"  wrong exception: {each}" for each in found.wrong]
    lines += [f"  {times} trainers: {text}" for text, times in found.notes.items()]
    return "\n".join(lines)
