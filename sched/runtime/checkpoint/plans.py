"""The programs of a job in its checkpoints: a plan made from measured times cannot be made again.

Generators of schedules are pure, but what fills their gaps follows from times, which a job that is
resumed does not have. So a checkpoint holds the programs themselves, in their text form, the plans
of units that were made of them, and, where the plan follows the measured times, what is known of
them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...ir.program import Program, parse_program
from ...ir.registry import schedule as make_program

_PROGRAMS, _STATE, _UNITS = "programs.json", "plan.json", "units.json"


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


def write_unit_plans(folder: Path, text: str) -> None:
    """Write the plans of units into a checkpoint, if the job has any."""
    if text:
        (folder / _UNITS).write_text(text, "utf-8")


def write_plan_state(folder: Path, follower: PlanFollower | None) -> None:
    """Write what is known of the plan into a checkpoint, if it may change."""
    if follower is not None:
        (folder / _STATE).write_text(follower.text(), "utf-8")


def read_plan_state(folder: Path, follower: PlanFollower | None) -> None:
    """Load a plan's state from a checkpoint, if both have a plan that may change."""
    if follower is not None and (folder / _STATE).is_file():
        follower.load((folder / _STATE).read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class ResumedSchedule:
    """A schedule that goes on with programs that were saved, by ranks and microbatches.

    `schedule`, `options`: what makes all others. `unit_plans`: the text of the plans that units
    made of the saved programs, which are then for units alone: a pipeline with encoders in its
    bubbles has others.
    """

    saved: Mapping[tuple[int, int], Program]
    schedule: str | Callable[[int, int], Program]
    options: Mapping[str, Any]
    unit_plans: str = ""

    def __call__(self, ranks: int, microbatches: int) -> Program:
        """Return the program of a number of microbatches, for a mesh."""
        if not self.unit_plans and (found := self.saved.get((ranks, microbatches))):
            return found
        if isinstance(self.schedule, str):
            return make_program(
                self.schedule, ranks=ranks, microbatches=microbatches, **self.options
            )
        return self.schedule(ranks, microbatches)


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
