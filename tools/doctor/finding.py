"""A finding of the doctor: a fact, its severity, and advice."""

from dataclasses import dataclass

GOOD, WARN, BAD = "good", "warn", "bad"
COLOURS = {GOOD: "green", WARN: "yellow", BAD: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. level: good, warn (slower or risky) or bad (will fail)."""

    name: str
    level: str
    found: str
    advice: str = ""


def judge(name: str, found: str, *, bad: str | bool = False, warn: str | bool = False) -> Finding:
    """Return a finding: bad or warn if advice is given for that level, else good.

    >>> judge("port", "taken", warn="choose another").level
    'warn'
    """
    if bad:
        return Finding(name, BAD, found, str(bad))
    return Finding(name, WARN, found, str(warn)) if warn else Finding(name, GOOD, found)
