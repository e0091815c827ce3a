"""Reads timelines: of a program, which is simulated, or of a measured step, from its JSON."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...sched import Timeline, simulate
from ...sched.simulation.measured import MeasuredStep, load_step
from .cost_options import CostSource, ProfiledCosts
from .programs import Size, read_program


def is_step(target: str) -> bool:
    """Return whether a target names a measured step: a file that ends in .json."""
    return target.endswith(".json")


def read_step(path: Path) -> MeasuredStep:
    """Return the step that a file holds. Raises ValueError, with the path, if it holds none."""
    try:
        step = load_step(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if step.timeline.name:
        return step
    return replace(step, timeline=replace(step.timeline, name=path.stem))


def read_timelines(targets: Sequence[str], size: Size, costs: CostSource) -> list[Timeline]:
    """Return the timelines of steps and programs, in order.

    Programs are simulated; with a cost profile and no --holds, for the microbatches of the first
    step that says what they held.
    """
    steps = {target: read_step(Path(target)) for target in targets if is_step(target)}
    held = next((step.microbatches for step in steps.values() if step.microbatches), ())
    if isinstance(costs, ProfiledCosts) and costs.holds == ({},) and held:
        costs = replace(costs, holds=held)
    return [
        steps[target].timeline if target in steps else _simulated(target, size, costs)
        for target in targets
    ]


def _simulated(target: str, size: Size, costs: CostSource) -> Timeline:
    program = read_program(target, size)
    return simulate(program, costs.of(program))
