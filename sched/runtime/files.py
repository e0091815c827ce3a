"""Files that the ranks of a job write and read together: none goes on before all did their part."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch.distributed as dist

from .pipeline import Pipeline

_T = TypeVar("_T")


def on_all_ranks(
    pipe: Pipeline, task: str, deadline_s: float | None, work: Callable[[], _T]
) -> list[_T]:
    """Return what all ranks' parts of a work return. Where one fails, all raise and name it."""
    result: Any = None
    failed: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failed = error
    kind = next((k for k in (ValueError, OSError) if isinstance(failed, k)), RuntimeError)
    text = "" if failed is None else f"{type(failed).__name__}: {failed}"
    rows = pipe.exchange((kind, text, result), task, deadline_s)
    if failed is not None:
        raise failed
    bad = [(rank, kind, text) for rank, (kind, text, _) in enumerate(rows) if text]
    if bad:
        faults = "; ".join(f"rank {rank}: {text}" for rank, _, text in bad)
        raise bad[0][1](f"could not {task}: {faults}")
    return [result for _, _, result in rows]


@contextmanager
def new_folder(
    pipe: Pipeline, folder: Path, deadline_s: float | None, finish: Callable[[Path], object]
) -> Iterator[tuple[Path, Callable[..., list[Any]]]]:
    """Save a folder on all ranks together, which has another name until all is on the disk.

    Yields its path until then, and `on_all_ranks` for the parts of the work. `finish`: the first
    process' last part, given that path. Leaves no folder if any rank fails.
    """
    making, first = folder.with_name(f"{folder.name}.partial"), dist.get_rank() == 0
    together = partial(on_all_ranks, pipe, f"save {folder}", deadline_s)

    def begin() -> None:
        if folder.exists():
            raise FileExistsError(f"{folder} exists; save into a new folder each time")
        if first:
            # What a job left that was killed while it saved.
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)

    def end() -> None:
        if first:
            finish(making)
            sync_folder(making)
            making.replace(folder)
            sync_folder(folder.parent)

    try:
        together(begin)
        yield making, together
        together(end)
    except (OSError, ValueError, RuntimeError):
        if first:  # the room is needed where the disk is full
            shutil.rmtree(making, ignore_errors=True)
        raise


@contextmanager
def written(path: Path, mode: str = "wb") -> Iterator[BinaryIO]:
    """Open a file that is on the disk when the block ends. Raises OSError that names it."""
    try:
        with path.open(mode) as file:
            yield file  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
