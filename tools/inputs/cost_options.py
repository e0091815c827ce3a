"""The options of the schedule commands for costs, and the timelines that programs have by them.

Costs are times in milliseconds, or cost profiles. A measured step is a file that ends in .json.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import click

from ...sched import Costs, Program, Timeline, simulate
from ...sched.render.summary import BYTES, MemoryUnit
from ...sched.simulation.cost_profile import CostProfile, load_profile, profile_costs
from ...sched.simulation.measured import MeasuredStep, load_step
from .files import parse_text
from .programs import Command, Size, is_count, read_program, with_options

MS = 1_000_000
# A microbatch's activations on a rank, as a whole number that up to 12 chunks divide.
MICROBATCHES = MemoryUnit("microbatches", 27720, "microbatch")
TIMES = (
    ("f", "forward through all that a rank holds", "1"),
    ("b", "full backward through it", "twice F"),
    ("i", "input gradients of it", "half of B"),
    ("w", "weight gradients of it", "what I leaves of B"),
    ("s", "a rank's vocabulary pass S", "a fifth of F"),
    ("t", "a rank's vocabulary pass T", "as S"),
    ("ef", "an encoder's forward pass: a layer's, where passes are layers", "a tenth of F"),
    ("eb", "an encoder's backward pass", "twice EF"),
    ("p2p", "sending from rank to rank", "0"),
    ("collective", "a collective of the vocabulary passes", "0"),
)


class CostSource(Protocol):
    """Anything that gives the costs of a program."""

    @property
    def unit(self) -> MemoryUnit:
        """The unit in which memory is counted."""

    def of(self, program: Program) -> Costs:
        """Return the costs of a program. Raises ValueError if they are not known."""


@dataclass(frozen=True, slots=True)
class GivenTimes:
    """The times given on the command line, in nanoseconds, for a rank's share of the model.

    Where a rank holds several chunks, each takes its share, so that schedules can be compared.
    """

    times: dict[str, int | None]

    @property
    def unit(self) -> MemoryUnit:
        """The unit in which memory is counted."""
        return MICROBATCHES

    def of(self, program: Program) -> Costs:
        """Return the costs of a program."""
        chunks = max(map(len, map(program.stages_of, range(len(program.ranks)))), default=1)
        times = self.times
        forward = _or(times["f"], MS)
        backward = _or(times["b"], 2 * forward)
        inputs = _or(times["i"], backward // 2)
        weights = _or(times["w"], max(0, backward - inputs))
        softmax = _or(times["s"], forward // 5)
        gradients = _or(times["t"], softmax)
        staged = {"F": forward, "B": backward, "I": inputs, "W": weights}
        half = softmax // 2
        cut = {"S": softmax, "T": gradients, "L": half, "E": softmax - half, "G": gradients}
        free = dict.fromkeys(("C", "IF", "IB", "GF", "GB", "O"), 0)
        free |= dict.fromkeys(("UNSHARD", "RESHARD", "REDUCE_GRAD"), 0)
        encoder = _or(times["ef"], forward // 10)
        guests = {"EF": encoder, "EB": _or(times["eb"], 2 * encoder)}
        present = {item.kind for row in program.ranks for item in row}
        layers = {name: guests[name[:2]] for name in present if name[:3] in ("EF_", "EB_")}
        barriers = (barrier.name for barrier in program.barriers)
        return Costs(
            {kind: time // chunks for kind, time in staged.items()} | cut | free | guests | layers,
            p2p_ns=_or(times["p2p"], 0),
            collective_ns=dict.fromkeys(barriers, _or(times["collective"], 0)),
            buffer_bytes={"activation": MICROBATCHES.size // chunks},
        )


@dataclass(frozen=True, slots=True)
class ProfiledCosts:
    """Cost profiles from files, and the resources of the microbatches, in turn."""

    profiles: tuple[CostProfile, ...]
    holds: tuple[Mapping[str, int], ...]

    @property
    def unit(self) -> MemoryUnit:
        """The unit in which memory is counted: bytes, if all profiles have buffers."""
        if all(profile.buffers for profile in self.profiles):
            return BYTES
        return MemoryUnit("activations", 1, "activation")

    def of(self, program: Program) -> Costs:
        """Return the costs of a program, by the first profile of the same placement of stages."""
        found = next((p for p in self.profiles if p.placement == program.placement), None)
        if found is None:
            has = " ".join(map(str, program.placement))
            had = ", or ".join(" ".join(map(str, p.placement)) for p in self.profiles)
            raise ValueError(
                f"{program.name} has its stages on ranks {has}, the profile on {had}; "
                "give one more --costs for it"
            )
        microbatches = tuple(islice(cycle(self.holds), program.microbatches))
        return profile_costs(found, microbatches)


def with_costs(command: Command) -> Command:
    """Add the options of costs to a command, as its argument `costs`."""

    @functools.wraps(command)
    def run(**given: Any) -> object:
        times = {name: given.pop(name) for name, _, _ in TIMES}
        paths, holds = given.pop("costs"), given.pop("holds")
        return command(costs=_cost_source(times, paths, holds), **given)

    profile = (
        click.option(
            "--costs",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Cost profile (JSON) instead of times; one for each placement.",
        ),
        click.option(
            "--holds",
            multiple=True,
            metavar="RESOURCE=AMOUNT,...",
            help="With --costs: the resources of a microbatch; repeat, and they take turns.",
        ),
    )
    times = (
        click.option(
            f"--{name}",
            metavar="MS",
            callback=_nanoseconds,
            help=f"Milliseconds for {what}.  [{default}]",
        )
        for name, what, default in TIMES
    )
    return with_options((*times, *profile))(run)


def _cost_source(
    times: dict[str, int | None], paths: tuple[Path, ...], holds: tuple[str, ...]
) -> CostSource:
    if not paths:
        if holds:
            raise ValueError("--holds needs a cost profile; give --costs FILE with it")
        return GivenTimes(times)
    if given := [name for name, time in times.items() if time is not None]:
        raise ValueError(f"got --costs and --{given[0]}; give a profile or times, not both")
    profiles = tuple(parse_text(path, load_profile) for path in paths)
    return ProfiledCosts(profiles, tuple(map(_amounts, holds)) or ({},))


def _amounts(text: str) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for word in text.split(","):
        name, _, amount = word.partition("=")
        if not name or not (is_count(amount) or amount == "0"):
            raise ValueError(
                f"--holds got {word!r:.80}; write RESOURCE=AMOUNT, such as tokens=4096"
            )
        amounts[name] = int(amount)
    return amounts


def _nanoseconds(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return written milliseconds in whole nanoseconds. Raises ValueError for other text."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"--{option.name} got {text!r}; give milliseconds, 0 or more, such as 1.5")
    return round(value * MS)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def is_step(target: str) -> bool:
    """Return whether a target names a measured step: a file that ends in .json."""
    return target.endswith(".json")


def read_step(path: Path) -> MeasuredStep:
    """Return the step that a file holds. Raises ValueError, with the path, if it holds none."""
    step = parse_text(path, load_step)
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
