"""Groups the samples of a dead-letter file, those that were given up, by source and reason."""

import re
from collections import defaultdict
from pathlib import Path

from ...workers.sources.dead_letter import DeadLetter, read_letters
from .finding import Finding, judge

NAMED = 3
# Parts that differ between samples with the same problem: numbers, quoted names, paths.
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|/[^\s:,]+|0x[0-9a-f]+|\d+")


def examine_dead_letters(path: Path) -> list[Finding]:
    """Return a finding for each group of letters, the largest first.

    Raises ValueError if the file is missing or is not a dead-letter file.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the loader's dead_letter= file")
    letters = read_letters(path)
    if not letters and path.stat().st_size:
        raise ValueError(f"{path} is not a dead-letter file: no line of it is a letter")
    if not letters:
        return [judge("dead letters", "none")]
    groups: dict[tuple[str, str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[letter.source, letter.kind, generalize(letter.reason)].append(letter)
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [_finding(source, group) for (source, _, _), group in largest]


def generalize(reason: str) -> str:
    """Return a reason without the parts that differ from sample to sample.

    >>> generalize("image 3 of 'a.tar' has 70000 pixels")
    'image # of # has # pixels'
    """
    return _DETAIL.sub("#", reason)


def _finding(source: str, group: list[DeadLetter]) -> Finding:
    keys = list(dict.fromkeys(letter.key for letter in group))
    named = ", ".join(keys[:NAMED]) + (", ..." if len(keys) > NAMED else "")
    first = group[0]
    name = f"{source or 'unnamed source'} ({first.kind})"
    found = f"{len(keys)} samples ({named}), {len(group)} letters: {first.reason}"
    advice = "repair or remove these samples" if first.kind == "data" else "check the storage"
    return judge(name, found, warn=advice)
