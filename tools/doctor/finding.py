"""What the doctor finds: a fact, how bad it is, and what to do about it."""

from dataclasses import dataclass

GOOD, WARN, BAD = "good", "warn", "bad"
COLOURS = {GOOD: "green", WARN: "yellow", BAD: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `level`: good, warn (slower or risky) or bad (will fail)."""

    name: str
    level: str
    found: str
    advice: str = ""


def judge(name: str, found: str, *, bad: str | bool = False, warn: str | bool = False) -> Finding:
    """A finding: bad or warn where that is advice, good where both are empty.

    >>> judge("port", "taken", warn="choose another").level
    'warn'
    """
    if bad:
        return Finding(name, BAD, found, str(bad))
    return Finding(name, WARN, found, str(warn)) if warn else Finding(name, GOOD, found)
