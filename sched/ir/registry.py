"""The registry of schedules: each has a name, a one-line description and a pure generator.

A generator takes `ranks`, `microbatches` and options of its own, and returns a Program. To add
one, decorate a function with `register`, as examples/own_schedule.py does.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from .program import Program

Generator = Callable[..., Program]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A registered generator. `options`: its parameters besides ranks and microbatches."""

    name: str
    description: str
    generate: Generator
    options: tuple[str, ...]


_REGISTRY: dict[str, Schedule] = {}


def register(name: str, description: str) -> Callable[[Generator], Generator]:
    """Return a decorator that registers a generator under a name.

    Raises ValueError if another generator has the name, or if it lacks ranks or microbatches.
    """

    def add(generate: Generator) -> Generator:
        if name in _REGISTRY and _REGISTRY[name].generate is not generate:
            raise ValueError(f"schedule {name!r} is registered already; choose another name")
        names = inspect.signature(generate).parameters
        if missing := {"ranks", "microbatches"} - set(names):
            raise ValueError(f"schedule {name!r} must take {' and '.join(sorted(missing))}")
        options = tuple(n for n in names if n not in ("ranks", "microbatches"))
        _REGISTRY[name] = Schedule(name, description, generate, options)
        return generate

    return add


def schedules() -> tuple[Schedule, ...]:
    """Return all registered schedules, sorted by name."""
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


def schedule(name: str, ranks: int, microbatches: int, **options: int | str | bool) -> Program:
    """Return the program of a registered schedule; a `partial` of it has options.

    Raises ValueError for an unknown name or option, for sizes below one, and for sizes that the
    schedule does not support.

    >>> print(schedule("1f1b", ranks=2, microbatches=3))
    schedule: 1f1b
    placement: 0 1
    microbatches: 3
    0: 0F0 0F1 0B0 0F2 0B1 0B2
    1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown schedule {name!r}; known are {', '.join(sorted(_REGISTRY))}")
    registered = _REGISTRY[name]
    if ranks < 1 or microbatches < 1:
        raise ValueError(
            f"{name} got {ranks} ranks and {microbatches} microbatches; give at least one of each"
        )
    if unknown := set(options) - set(registered.options):
        allowed = ", ".join(registered.options) or "none"
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; its options: {allowed}")
    return registered.generate(ranks=ranks, microbatches=microbatches, **options)
