"""Finds the files of a data pattern: a path, a glob, a brace pattern, or a list of these.

Local files are found here, URLs by workers/stores; webdataset's `pipe:` is refused. With a root,
every file must lie below it once symbolic links are followed, and relative patterns start there.
"""

import glob
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from braceexpand import braceexpand  # comes with webdataset

from .urls import checked_url, is_url, shown

Pattern = str | Path | Sequence[str | Path]
# Indexes and costs are kept beside the shards; `folder/*` does not mean them.
KEPT = (".npz", ".costs")
# What stands in a file whose content has not been fetched.
POINTERS, LONGEST_POINTER = (b"version https://git-lfs", b"/annex/objects/"), 512
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
    FileNotFoundError where a path is missing, a glob matches nothing, or what it matches cannot be
    read; ValueError for a URL or a path outside the root.
    """
    paths: dict[Path, Path] = {}
    for text in texts(pattern):
        if is_url(text):
            raise ValueError(
                f"{shown(text)!r} is no local path, and only tar shards are read by URL: copy or "
                "mount the files and give their path"
            )
        base = Path(root).resolve() if root is not None else None
        for path in _find_matches(text, base, extensions):
            paths.setdefault(path.resolve(), path)
    return tuple(sorted(paths.values()))


def named(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern as texts that may be shown; ValueError for none, and for pipes."""
    return tuple(shown(text) if is_url(text) else text for text in texts(pattern))


def texts(pattern: Pattern) -> tuple[str, ...]:
    """Return a pattern as texts, as they were given; ValueError for none, and for pipes."""
    patterns = (pattern,) if isinstance(pattern, str | Path) else tuple(pattern)
    if not patterns or not all(str(text) for text in patterns):
        raise ValueError("no data was named; give a path, a glob or a brace pattern of tar shards")
    for text in filter(is_url, map(str, patterns)):
        checked_url(text)
    return tuple(map(str, patterns))


def _find_matches(text: str, root: Path | None, extensions: Sequence[str]) -> Iterator[Path]:
    for candidate in _expand_names(text):
        # joined and normalized first: a pattern that leaves the root is not even looked at
        path = Path(candidate).expanduser() if root is None else root / candidate
        if root is not None:
            bound(Path(posixpath.normpath(path)), root, text)
        for match in _find_existing(path, text, extensions):
            yield match if root is None else bound(match.resolve(), root, text)


def _expand_names(text: str) -> list[str]:
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
    if count_names(text) > MAX_NAMES:
        raise ValueError(f"pattern {text!r:.80} stands for more than {MAX_NAMES} names")
    try:
        names = list(braceexpand(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"pattern {text!r:.80}: {error}; write {{00..12}} or {{a,b}}") from None
    if any(len(name) >= LONGEST_PATH for name in names):
        raise ValueError(f"pattern {text!r:.80} names paths longer than {LONGEST_PATH}")
    return names


def count_names(text: str) -> int:
    """Return a lower bound on the names of a brace pattern, at most MAX_NAMES + 1.

    >>> [count_names(text) for text in ("a-{000..011}.tar", "{a,b{1..3}}{x,y}", "{1..999999999}")]
    [12, 8, 1000001]
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
    match = RANGE.fullmatch(inside)
    if match is None:
        return 1
    if max(len(end.lstrip("-0")) for end in match.groups()) > 18:
        return MAX_NAMES + 1
    return abs(int(match[2]) - int(match[1])) + 1


def _find_existing(path: Path, text: str, extensions: Sequence[str]) -> list[Path]:
    if path.exists() and not path.is_dir():
        _is_shard(path, text, extensions)  # or raises
        return [path]
    if path.is_dir():
        _check_listed(path, text)
        kinds = (sorted(path.glob(f"*{extension}")) for extension in extensions)
        names = next(filter(None, kinds), [])
        pulled = [file for extension in extensions for file in path.glob(f"*{extension}.dvc")]
        shown_pattern = " ".join(f"{path}/*{extension}" for extension in extensions)
    else:
        names, shown_pattern = _glob(path), str(path)
        pulled = _glob(Path(f"{path}.dvc"))
        magic = (parent for parent in path.parents if glob.has_magic(str(parent)))
        for folder in {path.parent, *magic}:
            for match in _glob(folder):
                # what has an extension may be any file; the others are links to folders
                if not (match.is_symlink() and match.suffix):
                    _check_listed(match, text)
    for pointer in pulled:
        if not (file := pointer.with_suffix("")).exists():
            raise _read_error(file, text, "only its pointer of DVC is there")
    files = [f for f in names if f.suffix not in KEPT and _is_shard(f, text, extensions)]
    if not files:
        kind = "no file matches" if glob.has_magic(shown_pattern) else "no such file:"
        origin = "" if shown_pattern == text else f" (from {text!r})"
        raise FileNotFoundError(f"{kind} {shown_pattern}{origin}; check the path")
    return files


def _glob(path: Path) -> list[Path]:
    return [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207


def _check_listed(folder: Path, text: str) -> None:
    """Raise OSError for a folder whose files cannot be seen, which glob takes for an empty one."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            os.scandir(folder).close()
    except OSError as error:
        raise _read_error(folder, text, str(error.strerror)) from None


def _is_shard(path: Path, text: str, extensions: Sequence[str]) -> bool:
    """Return False for a folder; raises FileNotFoundError for what is called a shard and is none.

    To pass it over would be to train on fewer samples than were named.
    """
    try:
        state = path.stat()
    except OSError as error:
        leads = f"it is a link to {path.readlink()}: " if path.is_symlink() else ""
        raise _read_error(path, text, f"{leads}{error.strerror}") from None
    if stat.S_ISDIR(state.st_mode) and path.suffix not in extensions:
        return False
    if not stat.S_ISREG(state.st_mode):
        kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe, socket or device"
        raise _read_error(path, text, f"it is {kind}, and no file")
    if state.st_size < LONGEST_POINTER and path.read_bytes().startswith(POINTERS):
        raise _read_error(path, text, "it is a pointer of git-lfs or git-annex to its content")
    return True


def _read_error(path: Path, text: str, why: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} (from {text!r:.200}) cannot be read: {why}; fetch or mount its content, remove "
        "it, or give a pattern that leaves it out"
    )


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
