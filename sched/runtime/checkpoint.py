"""Checkpoints as folders: a file for each pipeline rank, and the programs that the job ran.

Generators of schedules are pure, but what fills their gaps follows from times, which a job that is
resumed does not have. So a checkpoint holds the programs themselves, in their text form, the plans
of units that were made of them, and, where the plan follows the measured times, what is known of
them.

A folder is written under another name and renamed when it is whole, so that a job which is killed
while it saves leaves the checkpoint before. All hosts must see the same file system.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..ir.program import Program, parse_program
from .job.arrangement import ResumedSchedule
from .model_state import RankState, join_states
from .pipeline import Pipeline

_PROGRAMS, _STATE, _UNITS, _EXTRA = "programs.json", "plan.json", "units.json", "extra.json"
_PARTIAL = ".partial"


def save_checkpoint(
    folder: str | Path,
    pipe: Pipeline,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint to a folder that does not exist yet; all ranks of the job call this.

    `extra`: anything that JSON can hold, such as the loader's state; the first process' is kept.
    Raises FileExistsError if the folder exists.
    """
    folder = Path(folder)
    making = folder.with_name(folder.name + _PARTIAL)
    first = dist.get_rank() == 0
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give each checkpoint a folder of its own")
    if first:
        # What a job left that was killed while it saved.
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        (making / _EXTRA).write_text(json.dumps(dict(extra or {})), "utf-8")
        write_plans(making, pipe)
    dist.barrier()
    state = pipe.state(optimizer)
    if pipe.replica == 0 and pipe.lane == 0:
        # Not asdict, which copies all tensors.
        parts = {field.name: getattr(state, field.name) for field in fields(state)}
        torch.save(parts, making / f"rank-{pipe.rank}.pt")
    dist.barrier()
    if first:
        making.replace(folder)
    dist.barrier()


def write_plans(folder: Path, pipe: Pipeline) -> None:
    """Write a job's programs by number of microbatches, its units' plans and its plan's state."""
    texts = {str(count): str(program) for count, program in sorted(pipe.programs().items())}
    (folder / _PROGRAMS).write_text(json.dumps(texts), "utf-8")
    if plans := pipe.unit_plans():
        (folder / _UNITS).write_text(plans, "utf-8")
    if pipe.replanner is not None:
        (folder / _STATE).write_text(pipe.replanner.text(), "utf-8")


def load_checkpoint(
    folder: str | Path, pipe: Pipeline, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Load a checkpoint of any layout into a pipeline, and return what was saved as `extra`.

    Each rank maps all files and reads what it needs. Raises FileNotFoundError for a folder that is
    no checkpoint, and ValueError for a model or an optimizer that it does not fit.
    """
    folder = Path(folder)
    files = sorted(folder.glob("rank-*.pt"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no checkpoint (no rank-*.pt)")
    parts = [
        RankState(**torch.load(file, map_location="cpu", mmap=True, weights_only=True))
        for file in files
    ]
    pipe.load_state(join_states(parts), optimizer)
    if pipe.replanner is not None and (folder / _STATE).is_file():
        pipe.replanner.load((folder / _STATE).read_text("utf-8"))
    extra: dict[str, Any] = json.loads((folder / _EXTRA).read_text("utf-8"))
    return extra


def resumed_schedule(
    checkpoint: str | Path | None,
    schedule: str | Callable[[int, int], Program],
    options: Mapping[str, Any] | None = None,
) -> ResumedSchedule:
    """Return a schedule for `Pipeline` that goes on with the programs of a checkpoint.

    `schedule`, `options`: as for Pipeline; it makes the programs of other numbers of ranks and
    microbatches than were saved, and all of them if `checkpoint` is None. In units of the sizes
    that were saved, the same ranks encode the same microbatches in the same order. Raises
    FileNotFoundError for a folder that is no checkpoint.
    """
    if checkpoint is None:
        return ResumedSchedule({}, schedule, options or {})
    folder = Path(checkpoint)
    texts = json.loads((folder / _PROGRAMS).read_text("utf-8"))
    programs = [parse_program(text) for text in texts.values()]
    saved = {(len(program.ranks), program.microbatches): program for program in programs}
    plans = (folder / _UNITS).read_text("utf-8") if (folder / _UNITS).is_file() else ""
    return ResumedSchedule(saved, schedule, options or {}, plans)


def newest_checkpoint(root: str | Path) -> Path | None:
    """Return the last whole checkpoint below a folder by name and number, None without any.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("step-9", "step-10", "step-11.partial"): (root / name).mkdir()
    >>> newest_checkpoint(root).name
    'step-10'
    """
    found = [p for p in Path(root).glob("*") if p.is_dir() and p.suffix != _PARTIAL]
    return max(found, key=_number, default=None)


def _number(folder: Path) -> tuple[int, str]:
    digits = "".join(letter for letter in folder.name if letter.isdecimal())
    return int(digits or 0), folder.name
