"""Finds the files of a data pattern: a path, a glob, a brace pattern, or a list of these.

Local files are found here, URLs by workers/stores; webdataset's `pipe:` is refused. With a root,
every file must lie below it once symbolic links are followed, and relative patterns start there.
"""

import glob
import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from braceexpand import braceexpand  # comes with webdataset

from .urls import checked_url, is_url, shown

Pattern = str | Path | Sequence[str | Path]
# Indexes and costs are kept beside the shards; `folder/*` does not mean them.
KEPT = (".npz", ".costs")
# A pattern is expanded before it is looked up, and may come from another host.
MAX_NAMES = 1_000_000
LONGEST_PATH = 4096
LONGEST_PATTERN = 1 << 16
# Expanding braces takes time that grows with the square of their depth.
DEEPEST_BRACES = 16
# Each ** looks at every folder again.
MOST_RECURSIONS = 2
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?\d+)?")
LETTERS = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?")


def find_shards(
    pattern: Pattern, root: str | Path | None = None, extensions: Sequence[str] = (".tar",)
) -> tuple[Path, ...]:
    """Return the local files of a pattern, sorted, each once.

    A folder means its files of the first of `extensions` that there are any of. Raises
    FileNotFoundError where a path is missing or a glob matches nothing, ValueError for a URL or a
    path outside the root.
    """
    found: dict[Path, Path] = {}
    for text in texts(pattern):
        if is_url(text):
            raise ValueError(
                f"{shown(text)!r} is no local path, and only tar shards are read by URL: copy or "
                "mount the files and give their path"
            )
        base = Path(root).resolve() if root is not None else None
        for path in _matches(text, base, extensions):
            found.setdefault(path.resolve(), path)
    return tuple(sorted(found.values()))


def named(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern as texts that may be shown; ValueError for none, and for pipes."""
    return tuple(shown(text) if is_url(text) else text for text in texts(pattern))


def texts(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern as texts, as they were given; ValueError for none, and for pipes."""
    found = (pattern,) if isinstance(pattern, str | Path) else tuple(pattern)
    if not found or not all(str(text) for text in found):
        raise ValueError("no data was named; give a path, a glob or a brace pattern of tar shards")
    for text in filter(is_url, map(str, found)):
        checked_url(text)
    return tuple(map(str, found))


def _matches(text: str, root: Path | None, extensions: Sequence[str]) -> Iterator[Path]:
    for candidate in _expanded(text):
        # joined and normalized first: a pattern that leaves the root is not even looked at
        path = Path(candidate).expanduser() if root is None else root / candidate
        if root is not None:
            bound(Path(posixpath.normpath(path)), root, text)
        for match in _existing(path, text, extensions):
            yield match if root is None else bound(match.resolve(), root, text)


def _expanded(text: str) -> list[str]:
    # A file may have braces in its name; a longer text is not even looked up.
    if len(text) < LONGEST_PATH and Path(text).exists():
        return [text]
    return expand_braces(text)


def expand_braces(text: str) -> list[str]:
    """Return the names that a brace pattern stands for; ValueError for too many."""
    if len(text) > LONGEST_PATTERN or depth(text) > DEEPEST_BRACES:
        raise ValueError(
            f"pattern {text!r:.80} has more than {LONGEST_PATTERN} characters or braces nested "
            f"more than {DEEPEST_BRACES} deep; give a list of patterns"
        )
    if text.count("**") > MOST_RECURSIONS:
        raise ValueError(f"pattern {text!r:.80} has more than {MOST_RECURSIONS} **; use fewer")
    if names_in(text) > MAX_NAMES:
        raise ValueError(f"pattern {text!r:.80} stands for more than {MAX_NAMES} names")
    try:
        names = list(braceexpand(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"pattern {text!r:.80}: {error}; write {{00..12}} or {{a,b}}") from None
    if any(len(name) >= LONGEST_PATH for name in names):
        raise ValueError(f"pattern {text!r:.80} names paths longer than {LONGEST_PATH}")
    return names


def names_in(text: str) -> int:
    """Return a lower bound on the names of a brace pattern, at most MAX_NAMES + 1.

    >>> names_in("a-{000..011}.tar"), names_in("{a,b{1..3}}{x,y}"), names_in("{1..999999999}")
    (12, 8, 1000001)
    """
    most = MAX_NAMES + 1
    levels, opened = [[0, 1]], list[int]()  # of each brace: names of closed parts, of the open one
    for at, character in enumerate(text):
        level = levels[-1]
        if character == "{":
            levels.append([0, 1])
            opened.append(at + 1)
        elif character == "," and opened:
            level[:] = min(most, level[0] + level[1]), 1
        elif character == "}" and opened:
            levels.pop()
            names = max(level[0] + level[1], _range_size(text[opened.pop() : at]))
            levels[-1][1] = min(most, levels[-1][1] * names)
    return levels[0][1]


def depth(text: str) -> int:
    """Return the deepest nesting of braces; those that are never closed count.

    >>> depth("{a,b{1..3}}{x,y}"), depth("a.tar"), depth("}{{"), depth("}")
    (2, 0, 2, 0)
    """
    steps = ((character == "{") - (character == "}") for character in text)
    return max(itertools.accumulate(steps, lambda at, step: max(0, at + step), initial=0))


def _range_size(inside: str) -> int:
    if LETTERS.fullmatch(inside):
        return ord("z") - ord("A") + 1
    found = RANGE.fullmatch(inside)
    if found is None:
        return 1
    if max(len(end.lstrip("-0")) for end in found.groups()) > 18:
        return MAX_NAMES + 1
    return abs(int(found[2]) - int(found[1])) + 1


def _existing(path: Path, text: str, extensions: Sequence[str]) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        kinds = (sorted(path.glob(f"*{each}")) for each in extensions)
        found = next(filter(None, kinds), [])
        wanted = " ".join(f"{path}/*{each}" for each in extensions)
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
        wanted = str(path)
    found = [file for file in found if file.is_file() and file.suffix not in KEPT]
    if not found:
        kind = "no file matches" if glob.has_magic(wanted) else "no such file:"
        origin = "" if wanted == text else f" (from {text!r})"
        raise FileNotFoundError(f"{kind} {wanted}{origin}; check the path")
    return found


def bound(path: Path, root: Path, text: str) -> Path:
    """Return a path that is below a root; ValueError for another, which `text` named."""
    if not path.is_relative_to(root):
        raise ValueError(f"{text!r:.200} leaves the root {root}; name files below it")
    return path


def resolved(path: Path, root: str | Path | None) -> Path:
    """Return a path, below the root if there is one; ValueError where links lead out of it."""
    if root is None:
        return path.expanduser()
    return bound(Path(root, path).resolve(), Path(root).resolve(), str(path))
