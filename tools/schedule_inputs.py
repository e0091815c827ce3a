"""What the schedule commands are given: programs by name or from a file, and what they cost.

A program is written `NAME[:OPTION=VALUE,...]`, such as `interleaved:chunks=4`, or is a file:
torch's CSV if it ends in .csv, else the grid that `export --format text` writes.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ..sched import Costs, Program, Schedule, lower, parse_program, schedule, schedules
from ..sched.csv_form import read_csv
from ..sched.summary import Unit

MS = 1_000_000
Command = Callable[..., Any]
# Divisible by up to 12 chunks: what a microbatch holds on a rank, in the simulator's whole numbers.
MICROBATCHES = Unit("microbatches", 27720, "microbatch")
TIMES = (
    ("f", "forward through all that a rank holds", "1"),
    ("b", "full backward through it", "twice F"),
    ("i", "input gradients of it", "half of B"),
    ("w", "weight gradients of it", "what I leaves of B"),
    ("s", "a rank's vocabulary pass S", "a fifth of F"),
    ("t", "a rank's vocabulary pass T", "as S"),
    ("p2p", "sending from rank to rank", "0"),
    ("collective", "a collective of the vocabulary passes", "0"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large a pipeline is to be; a program from a file says so itself."""

    ranks: int
    microbatches: int
    lowered: bool = False


def with_size(command: Command) -> Command:
    """Add --stages, --microbatches and --lower to a command, as its argument `size`."""

    @functools.wraps(command)
    def run(stages: int, microbatches: int, lowered: bool, **rest: object) -> object:
        return command(size=Size(stages, microbatches, lowered), **rest)

    options = (
        click.option("--stages", default=4, help="Pipeline ranks.  [4]"),
        click.option("--microbatches", default=8, help="Microbatches of a step.  [8]"),
        click.option("--lower", "lowered", is_flag=True, help="Add sends, receives, collectives."),
    )
    return _all(run, options)


@dataclass(frozen=True, slots=True)
class Prices:
    """The times given on the command line, in nanoseconds, for a rank's share of the model.

    Where a rank holds several chunks each takes its part, so that schedules can be compared.
    """

    times: dict[str, int | None]

    @property
    def unit(self) -> Unit:
        """What memory counts."""
        return MICROBATCHES

    def of(self, program: Program) -> Costs:
        """Return what the passes of a program cost."""
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
        free = dict.fromkeys(("C", "IF", "IB", "O", "UNSHARD", "RESHARD", "REDUCE_GRAD"), 0)
        barriers = (barrier.name for barrier in program.barriers)
        return Costs(
            {kind: time // chunks for kind, time in staged.items()} | cut | free,
            p2p_ns=_or(times["p2p"], 0),
            collective_ns=dict.fromkeys(barriers, _or(times["collective"], 0)),
            buffer_bytes={"activation": MICROBATCHES.size // chunks},
        )


def with_costs(command: Command) -> Command:
    """Add the flags of times to a command, as its argument `prices`."""

    @functools.wraps(command)
    def run(**given: Any) -> object:
        times = {name: given.pop(name) for name, _, _ in TIMES}
        return command(prices=Prices(times), **given)

    options = (
        click.option(
            f"--{name}",
            metavar="MS",
            callback=_nanoseconds,
            help=f"Milliseconds for {what}.  [{default}]",
        )
        for name, what, default in TIMES
    )
    return _all(run, tuple(options))


def _all(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _nanoseconds(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Milliseconds as written, in whole nanoseconds. Raises ValueError for what is no time."""
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


def read_program(target: str, size: Size) -> Program:
    """Read or make the program that a target names. Raises ValueError if there is none."""
    name, _, words = target.partition(":")
    registered = {found.name: found for found in schedules()}
    if name in registered:
        options = _options(registered[name], words)
        program = schedule(name, ranks=size.ranks, microbatches=size.microbatches, **options)
        program = replace(program, name=target)
    elif Path(target).exists():
        program = _read_file(Path(target))
    elif "." in target or "/" in target:
        raise ValueError(f"there is no file {target}; give a file or a name of `schedule list`")
    else:
        known = ", ".join(registered)
        raise ValueError(f"unknown schedule {name!r}; give a file, or one of {known}")
    return lower(program) if size.lowered else program


def _options(found: Schedule, words: str) -> dict[str, int | str | bool]:
    """Options as written, in the types that the generator asks for."""
    asked = inspect.signature(found.generate).parameters
    options: dict[str, int | str | bool] = {}
    for word in filter(None, words.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{found.name}: got option {word!r}; write NAME:OPTION=VALUE,...")
        kind = asked[key].annotation if key in asked else str
        options[key] = _option(f"{found.name}: {key}", kind, value)
    return options


def _option(what: str, kind: object, value: str) -> int | str | bool:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{what} got {value!r}; give true or false")
        return value == "true"
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{what} got {value!r}; give a whole number") from None
    return value


def _read_file(path: Path) -> Program:
    text = path.read_text(encoding="utf-8")
    try:
        program = read_csv(text) if path.suffix == ".csv" else parse_program(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return program if program.name else replace(program, name=path.stem)
