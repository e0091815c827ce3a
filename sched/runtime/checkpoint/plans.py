"""The programs of a job in its checkpoints: a plan made from measured times cannot be made again.

Generators of schedules are pure, but what fills their gaps follows from times, which a job that is
resumed does not have. So a checkpoint holds the programs themselves, in their text form, and, where
the plan follows the measured times, what is known of them.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ...ir.program import Program, parse_program
from ...ir.registry import schedule as make_program

_PROGRAMS, _STATE = "programs.json", "plan.json"


class PlanFollower(Protocol):
    """The part of a pipeline that follows the measured times."""

    def text(self) -> str:
        """Return its state as JSON."""

    def load(self, text: str) -> None:
        """Go on from a saved state, if it is of the plan that runs."""


def write_programs(folder: Path, programs: Mapping[int, Program]) -> None:
    """Write the programs of a job, by number of microbatches, into a checkpoint."""
    texts = {str(count): str(program) for count, program in sorted(programs.items())}
    (folder / _PROGRAMS).write_text(json.dumps(texts), "utf-8")


def write_plan_state(folder: Path, follower: PlanFollower | None) -> None:
    """Write what is known of the plan into a checkpoint, if it may change."""
    if follower is not None:
        (folder / _STATE).write_text(follower.text(), "utf-8")


def read_plan_state(folder: Path, follower: PlanFollower | None) -> None:
    """Load a plan's state from a checkpoint, if both have a plan that may change."""
    if follower is not None and (folder / _STATE).is_file():
        follower.load((folder / _STATE).read_text("utf-8"))


def resumed_schedule(
    checkpoint: str | Path | None,
    schedule: str | Callable[[int, int], Program],
    options: Mapping[str, Any] | None = None,
) -> Callable[[int, int], Program]:
    """Return a schedule for `Pipeline` that goes on with the programs of a checkpoint.

    `schedule`, `options`: as for Pipeline; it makes the programs of other numbers of ranks and
    microbatches than were saved, and all of them if `checkpoint` is None. Raises FileNotFoundError
    for a folder that is no checkpoint.
    """
    saved: dict[tuple[int, int], Program] = {}
    if checkpoint is not None:
        texts = json.loads((Path(checkpoint) / _PROGRAMS).read_text("utf-8"))
        programs = [parse_program(text) for text in texts.values()]
        saved = {(len(program.ranks), program.microbatches): program for program in programs}

    def program(ranks: int, microbatches: int) -> Program:
        if found := saved.get((ranks, microbatches)):
            return found
        if isinstance(schedule, str):
            given = options or {}
            return make_program(schedule, ranks=ranks, microbatches=microbatches, **given)
        return schedule(ranks, microbatches)

    return program
