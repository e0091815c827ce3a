"""Reads the programs that the schedule commands are given, by name or from a file.

A program is written `NAME[:OPTION=VALUE,...]`, such as `interleaved:chunks=4`, or is a file:
torch's CSV if it ends in .csv, else the grid that `export --format text` writes.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ...sched import Program, Schedule, lower, parse_program, schedule, schedules
from ...sched.ir.torch_csv import read_csv

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the pipeline to make; programs from files have their own."""

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
    return with_options(options)(run)


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in this order in its help."""
    return lambda command: functools.reduce(lambda made, add: add(made), reversed(options), command)


def read_program(target: str, size: Size) -> Program:
    """Return the program that a target names, read or made. Raises ValueError if there is none."""
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
    """Return options as written, converted to the types of the generator's parameters."""
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
    if path.suffix == ".json":
        raise ValueError(f"{path} is a measured step, which show and compare draw; give a program")
    text = path.read_text(encoding="utf-8")
    try:
        program = read_csv(text) if path.suffix == ".csv" else parse_program(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return program if program.name else replace(program, name=path.stem)
