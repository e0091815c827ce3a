"""Reads the programs that the schedule commands are given, by name or from a file.

A program is written `NAME[:OPTION=VALUE,...]`, such as `interleaved:chunks=4`, or is a file:
torch's CSV if it ends in .csv, else the grid that `export --format text` writes.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ...balancer.near_names import near_name
from ...sched import Program, Schedule, lower, parse_program, schedule, schedules
from ...sched.ir.torch_csv import read_csv
from ...workers.sources.visible_text import visible
from .files import parse_text

Command = Callable[..., Any]
# Stages x microbatches of the largest pipeline that is made, checked, timed or drawn; microbatches
# of all ranks in the largest step that is planned.
MOST_PASSES = 200_000
# Options of schedules that are times for which their pattern is made, not numbers of anything.
PACE = ("forward", "backward", "output")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the pipeline to make; programs from files have their own."""

    ranks: int
    microbatches: int
    lowered: bool = False


def with_size(command: Command) -> Command:
    """Add --ranks, --microbatches and --lower to a command, as its argument `size`."""

    @functools.wraps(command)
    def run(ranks: int, microbatches: int, lowered: bool, **arguments: object) -> object:
        check_sizes(ranks=ranks, microbatches=microbatches)
        return command(size=Size(ranks, microbatches, lowered), **arguments)

    lower_option = click.option(
        "--lower", "lowered", is_flag=True, help="Add sends, receives, collectives."
    )
    count = click.option("--microbatches", default=8, help="Microbatches of a step.  [8]")
    return click.option("--ranks", default=4, help="Pipeline ranks.  [4]")(count(lower_option(run)))


def check_sizes(**sizes: int) -> None:
    """Raise ValueError where the product of numbers is more than anything is planned or made for.

    >>> check_sizes(stages=10**6, microbatches=8)
    Traceback (most recent call last):
    ...
    ValueError: stages 1000000 x microbatches 8 are more than 200000: give fewer
    """
    if math.prod(sizes.values()) > MOST_PASSES:
        product = " x ".join(f"{name} {value}" for name, value in sizes.items())
        raise ValueError(f"{product} are more than {MOST_PASSES}: give fewer")


def is_count(word: str) -> bool:
    """Return whether a word is a whole number of 1 or more, in digits, that int64 has.

    >>> [is_count(word) for word in ("12", "0", "²", "9" * 30)]
    [True, False, False, False]
    """
    return word.isdecimal() and len(word) < 19 and int(word) > 0


def parse_amounts(option: str, texts: Iterable[str], least: int = 0) -> dict[str, int]:
    """Return {resource: amount} from texts like tiles=9; ValueError if one is malformed.

    >>> parse_amounts("--budget", ("tiles=9", "tokens=4096"))
    {'tiles': 9, 'tokens': 4096}
    """
    amounts = {}
    for text in texts:
        name, _, amount = text.partition("=")
        if not name or not (is_count(amount) or (amount == "0" and not least)):
            raise ValueError(
                f"{option} got {text!r:.80}; write RESOURCE=AMOUNT, such as tokens=4096"
            )
        amounts[name] = int(amount)
    return amounts


def read_program(target: str, size: Size, **times: int) -> Program:
    """Return the program that a target names, read or made. Raises ValueError if there is none.

    `times`: nanoseconds for the options PACE of a registered schedule, where not written.
    """
    name, _, words = target.partition(":")
    registered = {generator.name: generator for generator in schedules()}
    if name in registered:
        options = times | _options(registered[name], words)
        counts = {key: setting for key, setting in options.items() if key not in PACE}
        numbers = {key: max(1, count) for key, count in counts.items() if type(count) is int}
        check_sizes(stages=size.ranks, microbatches=size.microbatches, **numbers)
        program = schedule(name, ranks=size.ranks, microbatches=size.microbatches, **options)
        program = replace(program, name=target)
    elif Path(target).exists():
        program = _read_file(Path(target))
    elif "." in target or "/" in target:
        raise ValueError(f"there is no file {target}; give a file or a name of `schedule list`")
    else:
        known = ", ".join(registered) + near_name(name, registered)
        raise ValueError(f"unknown schedule {name!r}; give a file, or one of {known}")
    return lower(program) if size.lowered else program


def _options(generator: Schedule, words: str) -> dict[str, int | str | bool]:
    """Return options as written, converted to the types of the generator's parameters."""
    asked = inspect.signature(generator.generate).parameters
    options: dict[str, int | str | bool] = {}
    for word in filter(None, words.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{generator.name}: got option {word!r}; write NAME:OPTION=VALUE,...")
        kind = asked[key].annotation if key in asked else str
        options[key] = _option(f"{generator.name}: {key}", kind, value)
    return options


def _option(name: str, kind: object, value: str) -> int | str | bool:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{name} got {value!r}; give true or false")
        return value == "true"
    if kind is int:
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{name} got {value!r}; give a whole number") from None
    return value


def _read_file(path: Path) -> Program:
    if path.suffix == ".json":
        raise ValueError(f"{path} is a measured step, which show and compare draw; give a program")
    program = parse_text(path, read_csv if path.suffix == ".csv" else parse_program)
    passes = (item for row in program.ranks for item in row)
    largest = max((max(item.stage, item.microbatch) for item in passes), default=0)
    if max(largest, program.stages * program.microbatches, *program.placement) > MOST_PASSES:
        raise ValueError(
            f"{path}: a program has at most {MOST_PASSES} stages x microbatches, and this one has "
            f"{program.stages} x {program.microbatches}, and passes with numbers up to {largest}"
        )
    return replace(program, name=shown_name(program.name or path.stem))


def shown_name(name: str) -> str:
    """Return a name that a file has, or gives, as it is safe to print."""
    return visible(name).replace("[", "(").replace("]", ")")  # brackets are styles in tables
