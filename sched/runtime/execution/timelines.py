"""Write what steps took, for `counterpoise profile` and `schedule compare`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...simulation.measured import MeasuredStep, dump_step
from ...simulation.timeline import Timeline

# Where `counterpoise profile --run` asks for measured steps.
VARIABLE = "COUNTERPOISE_TIMELINES"


def timelines_folder(given: str | Path | None) -> Path | None:
    """Return the folder for measured steps: what was given, or what the environment asks for."""
    found = given or os.environ.get(VARIABLE)
    return Path(found) if found else None


def write_step(
    folder: Path, number: int, timeline: Timeline, held: Sequence[Mapping[str, int]]
) -> None:
    """Write a step's timeline and what its microbatches held as `step-NUMBER.json`, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    making = folder / f".step-{number}"
    microbatches = tuple(held) if all(held) else ()
    making.write_text(dump_step(MeasuredStep(timeline, microbatches)) + "\n", "utf-8")
    # Readers see whole files only.
    making.replace(folder / f"step-{number}.json")
