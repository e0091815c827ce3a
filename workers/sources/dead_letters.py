"""Writes and reads dead letters: a JSON line for each sample that was given up, and why.

Lines are appended in one write each, so that several processes may share a file. A full disk may
cut a line short: the next one then begins on a line of its own, and readers pass over the torn one.
"""

import json
import logging
import os
import stat
from dataclasses import fields
from pathlib import Path

from .failures import SkippedSample

logger = logging.getLogger(__name__)


def checked_path(path: str | Path) -> str:
    """Return the path of a dead-letter file, made if need be; ValueError if it cannot be written.

    >>> checked_path("/proc/none/letters.jsonl")
    Traceback (most recent call last):
    ...
    ValueError: dead_letter='/proc/none/letters.jsonl' cannot be written (No such file or \
directory): give the path of a file in a folder that exists and may be written to
    """
    try:
        os.close(_open_to_append(path))
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"dead_letter={os.fspath(path) if isinstance(path, Path) else path!r} cannot be written"
            f" ({why}): give the path of a file in a folder that exists and may be written to"
        ) from None
    return os.fspath(path)


def record_letter(path: str | Path, letter: SkippedSample) -> None:
    """Append a dead letter; one that cannot be written goes to the log, and the run goes on.

    Who leaves samples out wants the run to go on, and a full disk says nothing against the samples.
    """
    try:
        append_letter(path, letter)
    except OSError as error:
        logger.warning("%s cannot be written (%s): %s", path, error.strerror, letter.line())


def append_letter(path: str | Path, letter: SkippedSample) -> None:
    """Append a dead letter to a file, which is made if need be; OSError if it is not whole."""
    handle = _open_to_append(path)
    try:
        line = f"{letter.line()}\n".encode()
        # Some other line was cut short: this one is to be read all the same.
        line = line if _ends_with_a_line(handle) else b"\n" + line
        written = os.write(handle, line)
        if written < len(line):
            os.write(handle, line[written:])  # says why
    finally:
        os.close(handle)


def read_letters(path: str | Path) -> list[SkippedSample]:
    """Return all whole dead letters of a file, the oldest first; none if there is no such file."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    letters = [_parse_letter(line) for line in data.split(b"\n")]
    return [letter for letter in letters if letter is not None]


def _parse_letter(line: bytes) -> SkippedSample | None:
    """Return the letter of a line; None for a torn one, and for what is none."""
    try:
        letter = json.loads(line)
    except (ValueError, RecursionError):
        return None
    names = {field.name for field in fields(SkippedSample)}
    if not isinstance(letter, dict) or letter.keys() != names:
        return None
    return SkippedSample(**letter) if all(isinstance(v, str) for v in letter.values()) else None


def _open_to_append(path: str | Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _ends_with_a_line(handle: int) -> bool:
    """Return whether a file is empty, or its last byte ends a line; a device is asked nothing."""
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or not state.st_size:
        return True
    return os.pread(handle, 1, state.st_size - 1) == b"\n"
