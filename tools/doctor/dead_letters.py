"""What a dead-letter file says: samples that were given up, by reason and source."""

import re
from collections import defaultdict
from pathlib import Path

from ...workers.sources.dead_letter import DeadLetter, read_letters
from .finding import Finding, judge

NAMED = 3
# What differs from sample to sample within one reason: numbers, quoted names, paths.
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|/[^\s:,]+|0x[0-9a-f]+|\d+")


def examine_letters(path: Path) -> list[Finding]:
    """Group the letters of a file, the largest group first; ValueError for one that is none."""
    if not path.is_file():
        raise ValueError(f"there is no dead-letter file {path}")
    try:
        letters = read_letters(path)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no dead-letter file: {error}") from error
    if not letters:
        return [judge("dead letters", "none")]
    groups: dict[tuple[str, str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[letter.source, letter.kind, general(letter.reason)].append(letter)
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [_finding(source, group) for (source, _, _), group in largest]


def general(reason: str) -> str:
    """Return a reason without what differs from sample to sample.

    >>> general("image 3 of 'a.tar' has 70000 pixels")
    'image # of # has # pixels'
    """
    return _DETAIL.sub("#", reason)


def _finding(source: str, group: list[DeadLetter]) -> Finding:
    keys = list(dict.fromkeys(letter.key for letter in group))
    named = ", ".join(keys[:NAMED]) + (", ..." if len(keys) > NAMED else "")
    first = group[0]
    name = f"{source or 'unnamed source'} ({first.kind})"
    found = f"{len(keys)} samples ({named}), {len(group)} letters: {first.reason}"
    advice = "repair or remove them" if first.kind == "data" else "look at the storage"
    return judge(name, found, warn=advice)
