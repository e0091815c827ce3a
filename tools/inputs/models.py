"""Reads what planning commands are given alike: a model, a device, its memory, parallel sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from ...balancer.near_names import near_name
from ...sched.shapes import DEFAULT_DEVICE, DEVICES, Device
from ..console.commands import KeyedOption

Option = Callable[[Any], Any]
PARALLEL = {
    "tp": "tensor parallelism",
    "pp": "pipeline ranks",
    "dp": "data-parallel replicas",
    "cp": "context parallelism",
    "vpp": "stages of a pipeline rank",
    "microbatches": "microbatches of a replica in a step",
    "sp": "0: without sequence parallelism",
    "overlap": "1: transfers run beside passes",
    "stages": "layers of each stage: 22/23/24/24",
}
model_option: Option = click.option(
    "--model", metavar="NAME|FILE|ENCODER+LANGUAGE",
    help="A config.json of Hugging Face, a paper's model, encoders + language model; of a part of "
    "a plan, measured layers or modules (JSON).",
)  # fmt: skip
device_option: Option = click.option(
    "--device", default=DEFAULT_DEVICE, show_default=True, metavar=f"{'|'.join(DEVICES)}|FILE",
    help="The GPU: peaks, links and memory.",
)  # fmt: skip


def parallel_option(about: str, *names: str) -> Option:
    """Return --parallel, the sizes of parallelism of some names."""
    return click.option(
        "--parallel", cls=KeyedOption, keys={name: PARALLEL[name] for name in names}, default="",
        metavar="NAME=NUMBER,...", help=about,
    )  # fmt: skip


def memory_limit(memory_gb: float | None, device: Device) -> int:
    """Return the bytes of a GPU that may be used: --memory-gb, or 92 % of the device's."""
    if memory_gb is None:
        return device.memory_bytes * 92 // 100
    if not 0 < memory_gb < 10**6:
        raise ValueError(f"--memory-gb {memory_gb}: give GB above 0")
    return int(memory_gb * 10**9)


def parse_parallel(text: str, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return numbers by name, of NAME=NUMBER,...; several are written with strokes between them.

    >>> parse_parallel("tp=2,stages=22/23", ("tp", "stages"))
    {'tp': (2,), 'stages': (22, 23)}
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for word in filter(None, text.split(",")):
        name, _, numbers = word.partition("=")
        digits = numbers.split("/")
        if name not in names or not all(part.isdecimal() and len(part) < 10 for part in digits):
            raise ValueError(
                f"--parallel got {word!r:.80}; write NAME=NUMBER with one of {', '.join(names)}, "
                f"such as tp=2; several numbers as 2/4{near_name(name, names)}"
            )
        if name in sizes:
            raise ValueError(f"--parallel has {name} twice; give it once")
        sizes[name] = tuple(map(int, digits))
    return sizes


def single(name: str, values: Sequence[int]) -> int:
    """Return the one number of a name in --parallel. Raises ValueError for several."""
    if len(values) > 1:
        raise ValueError(f"--parallel has {len(values)} numbers for {name}; give one")
    return values[0]
