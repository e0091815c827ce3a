"""Reads what planning commands are given alike: a model, a device, its memory, a microbatch."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from ...sched.shapes import DEFAULT_DEVICE, DEVICES, Device, Model

Option = Callable[[Any], Any]


def model_option(*names: str) -> Option:
    """Return --model, a paper's name, a config.json, or several with + between them."""
    return click.option(
        *names, "--model", "model", metavar="NAME|CONFIG|ENCODER+LANGUAGE",
        help="A config.json of Hugging Face, a paper's model, or encoders + language model.",
    )  # fmt: skip


def device_option() -> Option:
    """Return --device."""
    names = "|".join(DEVICES)
    return click.option(
        "--device", default=DEFAULT_DEVICE, show_default=True, metavar=f"{names}|FILE",
        help="The GPU: peaks, links and memory.",
    )  # fmt: skip


def amounts_of(model: Model, tiles: int | None, tokens: int | None) -> dict[str, int]:
    """Return a microbatch of a model: the usual one, or these tiles and one sequence of tokens."""
    pairs = None if tokens is None else tokens**2
    return model.amounts(tiles=tiles, tokens=tokens, token_pairs=pairs)


def memory_limit(memory_gb: float | None, device: Device) -> int:
    """Return the bytes of a GPU that may be used: --memory-gb, or 92 % of the device's."""
    if memory_gb is None:
        return device.memory_bytes * 92 // 100
    if not 0 < memory_gb < 10**6:
        raise ValueError(f"--memory-gb {memory_gb}: give GB above 0")
    return int(memory_gb * 10**9)


def parse_layout(text: str, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return numbers by name, of NAME=NUMBER,...; several are written with strokes between them.

    >>> parse_layout("tp=2,stages=22/23", ("tp", "stages"))
    {'tp': (2,), 'stages': (22, 23)}
    """
    found = {}
    for word in filter(None, text.split(",")):
        name, _, numbers = word.partition("=")
        values = numbers.split("/")
        if name not in names or not all(one.isdecimal() and len(one) < 10 for one in values):
            raise ValueError(
                f"--layout got {word!r:.80}; write NAME=NUMBER with one of {', '.join(names)}, "
                "such as tp=2; several numbers as 2/4"
            )
        found[name] = tuple(map(int, values))
    return found


def single(name: str, values: Sequence[int]) -> int:
    """Return the one number of a name in --layout. Raises ValueError for several."""
    if len(values) > 1:
        raise ValueError(f"--layout has {len(values)} numbers for {name}; give one")
    return values[0]
