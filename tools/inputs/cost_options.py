"""The options of the schedule commands for costs, and the timelines that programs have by them.

Costs are times in milliseconds, or cost profiles. A measured step is a file that ends in .json.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from ...balancer.near_names import near_name
from ...sched import Costs, Program, Timeline, schedules, simulate
from ...sched.generators.vocabulary import FORMS, PAPER_SCALING, output_form
from ...sched.render.summary import BYTES, MemoryUnit
from ...sched.simulation.cost_profile import CostProfile, load_profile, profile_costs
from ...sched.simulation.costs import Table
from ...sched.simulation.measured import MeasuredStep, load_step
from ..console.commands import KeyedOption
from .files import parse_text
from .programs import PACE, Command, Size, parse_amounts, read_program, shown_name

MS = 1_000_000
# A microbatch's activations on a rank, as a whole number that up to 12 chunks divide.
MICROBATCHES = MemoryUnit("microbatches", 27720, "microbatch")
TIMES = {
    "f": "forward through all that a rank holds, milliseconds  [1]",
    "b": "full backward through it  [twice f]",
    "i": "input gradients of it  [half of b]",
    "w": "weight gradients of it  [what i leaves of b]",
    "s": "a rank's vocabulary pass S  [a fifth of f]",
    "t": "a rank's vocabulary pass T  [as s]",
    "ef": "an encoder's forward pass: a layer's, where passes are layers  [a tenth of f]",
    "eb": "an encoder's backward pass  [twice ef]",
    "p2p": "sending from rank to rank  [0]",
    "collective": "a collective of the vocabulary passes  "
    "[f/60, as on 8 A100; f/6 above 8 ranks, 11 % of a step on 32 GPUs]",
}
SCALING = "scaling"
# Forms of the output layer, whose passes may be slower than 1/ranks of the whole.
SCALED_FORMS = (*FORMS, "interlaced")
COST_KEYS = TIMES | {
    SCALING: "how fast s and t are beside 1/ranks of the output layer, by Table 3 of the paper: "
    "paper, paper-4096  [1]",
    **dict.fromkeys(SCALED_FORMS, "the same, as measured for this form: a factor such as .91"),
}
# The kinds of the output layer's passes.
OUTPUT = ("S", "T", "L", "E", "G")


@dataclass(frozen=True, slots=True)
class GivenTimes:
    """The times given on the command line, in nanoseconds, for a rank's share of the model.

    Where a rank holds several chunks, each takes its share, so that schedules can be compared.
    `scaling` gives, for a form of the output layer and a number of ranks, how fast a rank's part is
    beside 1/p of the whole.
    """

    times: Mapping[str, int]
    scaling: Callable[[str, int], float] = lambda *_: 1.0

    @property
    def unit(self) -> MemoryUnit:
        """The unit in which memory is counted."""
        return MICROBATCHES

    def price(self, program: Program, output: bool = False) -> Costs:
        """Return the costs of a program, the output layer's on the last stage if `output`."""
        ranks = len(program.ranks)
        chunks = max(Counter(program.placement).values(), default=1)
        times = self.times
        forward = times.get("f", MS)
        backward = times.get("b", 2 * forward)
        inputs = times.get("i", backward // 2)
        weights = times.get("w", max(0, backward - inputs))
        softmax = times.get("s", forward // 5)
        gradients = times.get("t", softmax)
        staged = {"F": forward, "B": backward, "I": inputs, "W": weights}
        # Of the whole layer on one rank a third is forward; I and W are a third each.
        whole = ranks * (softmax + gradients) if output else 0
        shares = {"F": whole // 3, "B": whole - whole // 3, "I": whole // 3, "W": whole // 3}
        stages: dict[str, Table] = {
            kind: [time // chunks] * (program.stages - 1) + [time // chunks + shares[kind]]
            for kind, time in staged.items()
        }
        if form := output_form(program):
            factor = self.scaling(form, ranks)
            softmax, gradients = round(softmax / factor), round(gradients / factor)
        half = softmax // 2
        cut = {"S": softmax, "T": gradients, "L": half, "E": softmax - half, "G": gradients}
        free = dict.fromkeys(("C", "IF", "IB", "GF", "GB", "O"), 0)
        free |= dict.fromkeys(("UNSHARD", "RESHARD", "REDUCE_GRAD"), 0)
        encoder = times.get("ef", forward // 10)
        guests = {"EF": encoder, "EB": times.get("eb", 2 * encoder)}
        present = {item.kind for row in program.ranks for item in row}
        layers = {name: guests[name[:2]] for name in present if name[:3] in ("EF_", "EB_")}
        barriers = (barrier.name for barrier in program.barriers)
        collective = times.get("collective", collective_ns(forward, ranks))
        return Costs(
            {**stages, **cut, **free, **guests, **layers},
            p2p_ns=times.get("p2p", 0),
            collective_ns=dict.fromkeys(barriers, collective),
            buffer_bytes={"activation": MICROBATCHES.size // chunks},
        )


def collective_ns(forward: int, ranks: int) -> int:
    """Return what a collective of the vocabulary passes takes by default, by a forward.

    On 8 A100 of one machine the interlaced method's two block .03 of a forward; on 32, of four,
    they take 11 % of a step, a third of a forward (vocabulary parallelism, 2025, appendix B.2).
    """
    return forward // (60 if ranks <= 8 else 6)


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

    def price(self, program: Program, output: bool = False) -> Costs:  # noqa: ARG002
        """Return the costs of a program, by the first profile of the same placement of stages.

        What was measured holds all layers, so `output` adds nothing.
        """
        profile = next((p for p in self.profiles if p.placement == program.placement), None)
        if profile is None:
            has = " ".join(map(str, program.placement))
            had = ", or ".join(" ".join(map(str, p.placement)) for p in self.profiles)
            raise ValueError(
                f"{program.name} has its stages on ranks {has}, the profile on {had}; "
                "give one more --costs for it"
            )
        microbatches = tuple(islice(cycle(self.holds), program.microbatches))
        return profile_costs(profile, microbatches)


CostSource = GivenTimes | ProfiledCosts


def with_costs(command: Command) -> Command:
    """Add --costs and --holds to a command, as its argument `costs`."""

    @functools.wraps(command)
    def run(costs: tuple[str, ...], holds: tuple[str, ...], **arguments: Any) -> object:
        return command(costs=_read_costs(costs, holds), **arguments)

    holds_option = click.option(
        "--holds", multiple=True, metavar="RESOURCE=AMOUNT,...",
        help="With a cost profile: the resources of a microbatch; repeat, and they take turns.",
    )  # fmt: skip
    costs_option = click.option(
        "--costs", cls=KeyedOption, keys=COST_KEYS, multiple=True, metavar="KEY=MS,...|FILE",
        help="Milliseconds of passes, as f=1,b=2, or a cost profile (JSON); repeat, for each "
        "placement.",
    )  # fmt: skip
    return costs_option(holds_option(run))


def _read_costs(texts: tuple[str, ...], holds: tuple[str, ...]) -> CostSource:
    files = [text for text in texts if "=" not in text or Path(text).exists()]
    words = [word for text in texts if text not in files for word in text.split(",") if word]
    if files and words:
        raise ValueError(
            f"--costs got {files[0]} and {words[0]!r:.80}; give a profile or times, not both"
        )
    if not files:
        if holds:
            raise ValueError("--holds needs a cost profile; give --costs FILE with it")
        return _read_times(words)
    for file in files:
        if not Path(file).exists():
            raise ValueError(
                f"--costs got {file!r:.80}, which is no file; give a cost profile, or milliseconds "
                f"such as f=1,b=2"
            )
    profiles = tuple(parse_text(Path(file), load_profile) for file in files)
    held = (parse_amounts("--holds", text.split(",")) for text in holds)
    return ProfiledCosts(profiles, (*held,) or ({},))


def _read_times(words: Sequence[str]) -> GivenTimes:
    times, factors, published = dict[str, int](), dict[str, float](), ""
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in COST_KEYS:
            raise ValueError(
                f"--costs got {word!r:.80}; write KEY=MILLISECONDS, of {', '.join(COST_KEYS)}"
                f"{near_name(key, COST_KEYS)}"
            )
        if key in times or key in factors or (key == SCALING and published):
            raise ValueError(f"--costs has {key} twice; give it once")
        if key in TIMES:
            times[key] = _nanoseconds(key, text)
        elif key in SCALED_FORMS:
            factors[key] = _factor(key, text)
        elif text in ("paper", "paper-4096"):
            published = text
        else:
            raise ValueError(f"--costs got {word!r:.80}; write scaling=paper or paper-4096")
    if published and factors:
        raise ValueError(f"--costs got scaling={published} and {min(factors)}=; give one of them")
    if published:
        return GivenTimes(times, _published_scaling(2048 if published == "paper" else 4096))
    return GivenTimes(times, lambda form, *_: factors.get(form, 1.0))


def _published_scaling(sequence_length: int) -> Callable[[str, int], float]:
    """Return the factor of a form and a number of ranks, by the paper's Table 3."""
    table = PAPER_SCALING[sequence_length]

    def scaling(form: str, ranks: int) -> float:
        row = table[min(table, key=lambda gpus: abs(math.log(gpus / ranks)))]
        # The others' passes are those of Algorithm 1.
        return row.get(form, row["alg1"])

    return scaling


def _nanoseconds(key: str, text: str) -> int:
    """Return written milliseconds in whole nanoseconds. Raises ValueError for other text."""
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"--costs got {key}={text!r:.80}; give milliseconds, 0 or more, such as 1.5"
        )
    return round(value * MS)


def _factor(form: str, text: str) -> float:
    factor = _number(text)
    if not 0 < factor <= 2:
        raise ValueError(f"--costs got {form}={text!r:.80}; give a factor such as 0.91")
    return factor


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_step(target: str) -> bool:
    """Return whether a target names a measured step: a file that ends in .json."""
    return target.endswith(".json")


def read_step(path: Path) -> MeasuredStep:
    """Return the step that a file holds. Raises ValueError, with the path, if it holds none."""
    step = parse_text(path, load_step)
    name = shown_name(step.timeline.name or path.stem)
    return replace(step, timeline=replace(step.timeline, name=name))


def read_timelines(targets: Sequence[str], size: Size, costs: CostSource) -> list[Timeline]:
    """Return the timelines of steps and programs, in order.

    Programs are simulated; with a cost profile and no --holds, for the microbatches of the first
    step that says what they held.
    """
    steps = {target: read_step(Path(target)) for target in targets if is_step(target)}
    held = next((step.microbatches for step in steps.values() if step.microbatches), ())
    if isinstance(costs, ProfiledCosts) and costs.holds == ({},) and held:
        costs = replace(costs, holds=held)
    programs = {
        target: read_costed(target, size, costs) for target in targets if target not in steps
    }
    # What some have as passes of their own, the others have on their last stage.
    cut = any(map(output_form, programs.values()))
    timelines = []
    for target in targets:
        if target in steps:
            timelines.append(steps[target].timeline)
            continue
        program = programs[target]
        output = cut and not output_form(program) and isinstance(costs, GivenTimes)
        timeline = simulate(program, costs.price(program, output))
        timelines.append(replace(timeline, name=f"{target} + output") if output else timeline)
    return timelines


def read_costed(target: str, size: Size, costs: CostSource) -> Program:
    """Return the program that a target names, its pattern made for the costs where it has one."""
    program = read_program(target, size)
    name, _, _ = target.partition(":")
    registered = next((candidate for candidate in schedules() if candidate.name == name), None)
    if registered is None or not set(PACE) <= set(registered.options):
        return program
    table = costs.price(program).pass_ns
    mean = {kind: round(float(np.mean(table[kind]))) for kind in ("F", "B")}
    present = {item.kind for row in program.ranks for item in row}
    output = sum(round(float(np.mean(table[kind]))) for kind in OUTPUT if kind in present)
    pace = dict(zip(PACE, (max(1, mean["F"]), max(1, mean["B"]), output), strict=True))
    return read_program(target, size, **pace)
