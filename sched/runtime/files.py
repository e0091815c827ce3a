"""Files that the ranks of a job write and read together: none goes on before all did their part."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from .pipeline import Pipeline

_T = TypeVar("_T")


def on_all_ranks(
    pipe: Pipeline, what: str, deadline_s: float | None, work: Callable[[], _T]
) -> list[_T]:
    """Do a part of what all ranks do together, and return what each found.

    Raises on every rank if any fails: there its own error, and elsewhere one that names it.
    """
    result: Any = None
    failed: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failed = error
    kind = next((k for k in (ValueError, OSError) if isinstance(failed, k)), RuntimeError)
    text = "" if failed is None else f"{type(failed).__name__}: {failed}"
    rows = pipe.exchange((kind, text, result), what, deadline_s)
    if failed is not None:
        raise failed
    bad = [(rank, kind, text) for rank, (kind, text, _) in enumerate(rows) if text]
    if bad:
        found = "; ".join(f"rank {rank}: {text}" for rank, _, text in bad)
        raise bad[0][1](f"could not {what}: {found}")
    return [result for _, _, result in rows]


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
