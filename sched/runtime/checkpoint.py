"""Checkpoints as folders: a file for each pipeline rank, and the programs that the job ran.

Generators of schedules are pure, but what fills their gaps follows from times, which a job that is
resumed does not have. So a checkpoint holds the programs themselves, in their text form, and, where
the plan follows the measured times, what is known of them. Those of units are for units alone, and
have a file of their own. A list of checksums says which files belong to a checkpoint, and a file
that is not as it was written is not read. All hosts must see the same file system.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from ..ir.program import parse_program
from .files import new_folder, on_all_ranks, written
from .job.start import ResumedSchedule
from .model_state import RankState, join_states, names_taken
from .pipeline import Pipeline
from .settings import ScheduleFunction, as_function

_PROGRAMS, _STATE, _UNITS, _EXTRA = "programs.json", "plan.json", "units.json", "extra.json"
_CHECKSUMS = "checksums.json"


def save_checkpoint(
    folder: str | Path,
    pipe: Pipeline,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    deadline_s: float | None = None,
) -> None:
    """Write a checkpoint to a folder that does not exist yet; all ranks of the job call this.

    `extra`: anything that JSON can hold, such as the loader's state; the first process' is kept.
    `deadline_s`: how long ranks wait for each other's files, by default as long as in a step.

    Raises on every rank, and leaves no folder, if any rank fails: FileExistsError if the folder
    exists, OSError for what could not be written (a full disk), ValueError as `Pipeline.state`
    does. The job may go on after it. Raises PipelineStalledError for ranks that do not come.
    """
    sums: dict[str, str] = {}

    def write_texts() -> dict[str, str]:
        if dist.get_rank() != 0:
            return {}
        text = json.dumps(dict(extra or {}))
        return {_EXTRA: _write_text(making / _EXTRA, text), **write_plans(making, pipe)}

    def write_state() -> dict[str, str]:
        state = pipe.state(optimizer)
        if pipe.replica != 0 or pipe.lane != 0:
            return {}
        # Not asdict, which copies all tensors.
        parts = {field.name: getattr(state, field.name) for field in fields(state)}
        name = f"rank-{pipe.rank}.pt"
        return {name: _write(making / name, lambda file: torch.save(parts, file))}

    def finish(making: Path) -> None:
        _write_text(making / _CHECKSUMS, json.dumps(sums, sort_keys=True, indent=0))

    with new_folder(pipe, Path(folder), deadline_s, finish) as (making, together):
        for part in (write_texts, write_state):
            for digests in together(part):
                sums |= digests


class _Hashing:
    """A file that is written from its start to its end, with the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write some bytes."""
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        """Give all bytes to the system."""
        self.file.flush()


def _write(path: Path, write: Callable[[Any], object]) -> str:
    """Write a file that is on the disk when this returns its digest. Raises OSError."""
    with written(path) as file:
        hashing = _Hashing(file)
        write(hashing)
    return hashing.digest.hexdigest()


def _write_text(path: Path, text: str) -> str:
    return _write(path, lambda file: file.write(text.encode()))


def write_plans(folder: Path, pipe: Pipeline) -> dict[str, str]:
    """Write a job's programs and its plan's state; return the files' digests by name."""
    programs = {str(count): str(program) for count, program in sorted(pipe.programs().items())}
    texts = {_UNITS if pipe.in_units else _PROGRAMS: json.dumps(programs)}
    if pipe.replanner is not None:
        texts[_STATE] = pipe.replanner.text()
    return {name: _write_text(folder / name, text) for name, text in texts.items()}


def load_checkpoint(
    folder: str | Path,
    pipe: Pipeline,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    deadline_s: float | None = None,
) -> dict[str, Any]:
    """Load a checkpoint of any layout into a pipeline, and return what was saved as `extra`.

    All ranks of the job call this: each compares some files with their checksums, maps all files,
    and reads what it needs. `deadline_s`: as of `save_checkpoint`. Raises on every rank, before a
    weight is changed, if any fails: FileNotFoundError for a folder that is no checkpoint, and
    ValueError for damaged files and for another model than was saved; and after that, ValueError
    for an optimizer that it does not fit. Raises PipelineStalledError for ranks that do not come.
    """
    folder = Path(folder)
    sums = _read_checksums(folder)
    files = sorted(name for name in sums if name.endswith(".pt"))
    task = f"load {folder}"
    loaded: list[RankState] = []

    def verify() -> None:
        for name in files[dist.get_rank() :: dist.get_world_size()]:
            with (folder / name).open("rb") as file:
                _compare(folder / name, hashlib.file_digest(file, "sha256").hexdigest(), sums)

    def read() -> frozenset[str]:
        maps = (
            torch.load(folder / name, map_location="cpu", mmap=True, weights_only=True)
            for name in files
        )
        loaded.append(join_states([RankState(**parts) for parts in maps]))
        return names_taken(pipe.held(), loaded[0].model)

    def take() -> None:
        pipe.load_state(loaded[0], optimizer)
        if pipe.replanner is not None and _STATE in sums:
            pipe.replanner.load(_read_text(folder, _STATE, sums))

    extra: dict[str, Any] = json.loads(_read_text(folder, _EXTRA, sums))
    on_all_ranks(pipe, task, deadline_s, verify)
    known = frozenset[str]().union(*on_all_ranks(pipe, task, deadline_s, read))
    if unknown := sorted(set(loaded[0].model) - known):
        raise ValueError(
            f"{folder} has {', '.join(unknown[:3])}{' ...' if unknown[3:] else ''} "
            f"({len(unknown)} tensors), which no rank's modules have; it is another model's: make "
            "the model that was saved"
        )
    on_all_ranks(pipe, task, deadline_s, take)
    return extra


def _read_checksums(folder: Path) -> dict[str, str]:
    """Return the digests of a checkpoint's files, by name. Raises as `resumed_schedule` does."""
    path = folder / _CHECKSUMS
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no checkpoint (no {_CHECKSUMS})")
    try:
        digests = json.loads(path.read_text("utf-8"))
        sums = {str(name): str(digest) for name, digest in digests.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); load an older checkpoint") from error
    # A file of another name would not be missed where a layout can do without it.
    if missing := [name for name in sums if not (folder / name).is_file()]:
        raise ValueError(
            f"{path} names {', '.join(missing)}, which {folder} does not hold; copy it again from "
            "where it is whole, or load an older checkpoint"
        )
    return sums


def _read_text(folder: Path, name: str, sums: Mapping[str, str]) -> str:
    """Return a file of a checkpoint as text. Raises ValueError if it is damaged."""
    data = (folder / name).read_bytes()
    _compare(folder / name, hashlib.sha256(data).hexdigest(), sums)
    return data.decode()


def _compare(path: Path, digest: str, sums: Mapping[str, str]) -> None:
    if digest != sums.get(path.name):
        raise ValueError(
            f"{path} is not as it was written (another checksum than in {_CHECKSUMS}); copy it "
            "again from where it is whole, or load an older checkpoint"
        )


def resumed_schedule(
    checkpoint: str | Path | None, schedule: str | ScheduleFunction
) -> ResumedSchedule:
    """Return a schedule for `Pipeline` that goes on with the programs of a checkpoint.

    `schedule`: as for Pipeline; it makes the programs of other numbers of ranks and microbatches
    than were saved, and all of them if `checkpoint` is None. Raises FileNotFoundError for a folder
    that is no checkpoint, and ValueError for damaged files.
    """
    if checkpoint is None:
        return ResumedSchedule({}, as_function(schedule))
    folder = Path(checkpoint)
    sums = _read_checksums(folder)
    in_units = _UNITS in sums
    texts = json.loads(_read_text(folder, _UNITS if in_units else _PROGRAMS, sums))
    programs = [parse_program(text) for text in texts.values()]
    saved = {(len(program.ranks), program.microbatches): program for program in programs}
    return ResumedSchedule(saved, as_function(schedule), in_units)


def newest_checkpoint(root: str | Path, prefix: str = "step-") -> Path | None:
    """Return the whole checkpoint below a folder with the highest number, None without any.

    `prefix`: of the folders' names, all before the number. Folders of other names, and those that
    are not whole, are passed over. Raises ValueError if all checkpoints there have other names.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("step-9", "step-10", "step-10.bak2", "step-11.partial", "logs-20261125"):
    ...     (root / name).mkdir()
    ...     _ = (root / name / "checksums.json").write_text("{}")
    >>> newest_checkpoint(root).name
    'step-10'
    """
    whole = {path.parent.name: path.parent for path in Path(root).glob(f"*/{_CHECKSUMS}")}
    pattern = re.compile(re.escape(prefix) + "([0-9]+)")
    numbers = {name: int(match[1]) for name in whole if (match := pattern.fullmatch(name))}
    names = sorted(name for name in whole if not name.endswith(".partial"))
    if names and not numbers:
        raise ValueError(
            f"no checkpoint in {root} is called {prefix}NUMBER, but there is {names[0]}; call "
            "them so, or give their prefix="
        )
    return whole[max(numbers, key=lambda name: (numbers[name], name))] if numbers else None
