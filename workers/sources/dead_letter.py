"""Writes and reads the dead-letter file: a JSON line per sample that was given up, and why.

Lines are appended in one write each, so that several processes may share a file.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A sample that was given up: its key and source, the reason, and the kind of failure."""

    key: str
    source: str
    reason: str
    kind: str

    def line(self) -> str:
        """Return the letter as one line of JSON.

        >>> DeadLetter("a", "x.tar", "no text", "data").line()
        '{"key": "a", "source": "x.tar", "reason": "no text", "kind": "data"}'
        """
        return json.dumps({**asdict(self), "reason": self.reason[:LONGEST_REASON]})


def append_letter(path: str | Path, letter: DeadLetter) -> None:
    """Append a dead letter to a JSONL file, which is made if need be."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, f"{letter.line()}\n".encode())
    finally:
        os.close(handle)


def read_letters(path: str | Path) -> list[DeadLetter]:
    """Return all dead letters of a file, the oldest first; none if there is no such file."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    return [DeadLetter(**json.loads(line)) for line in text.splitlines()]
