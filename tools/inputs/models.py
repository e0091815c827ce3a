"""Reads what the planners are given: a model and a device, sizes, costs of samples.

One vocabulary for all planning commands: --model, --device, --tp, --pp, --dp, --cp, --vpp,
--memory-gb, --batch, --costs.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import numpy as np

from ...sched.ir.typed_json import Whole, read_json_file
from ...sched.shapes import (
    DEFAULT_DEVICE,
    DEVICES,
    Device,
    LayerCost,
    Model,
    ParallelLayout,
    layer_costs,
    read_device,
    read_model,
)
from .files import open_table
from .programs import check_sizes, is_count, with_options

_POSITIVE = click.IntRange(min=1)
MOST_LAYERS = 1000
MODEL_METAVAR = "NAME|CONFIG|ENCODER+LANGUAGE"

Option = Callable[[Any], Any]


def model_option(default: str | None = None) -> Option:
    """Return --model, a paper's name, a config.json, or several with + between them."""
    return click.option(
        "--model",
        default=default,
        show_default=default is not None,
        metavar=MODEL_METAVAR,
        help="A config.json of Hugging Face, a paper's model, or encoders + language model.",
    )


def device_option() -> Option:
    """Return --device."""
    names = "|".join(DEVICES)
    return click.option(
        "--device", default=DEFAULT_DEVICE, show_default=True, metavar=f"{names}|FILE",
        help="The GPU: peaks, links and memory.",
    )  # fmt: skip


def size_option(name: str, text: str, default: int = 1) -> Option:
    """Return an option of a size of 1 or more."""
    return click.option(name, default=default, show_default=True, type=_POSITIVE, help=text)


_OPTIONS = (
    model_option(),
    click.option(
        "--costs", type=click.Path(path_type=Path), help="Measured layers (JSON) instead."
    ),
    device_option(),
    click.option("--pp", type=_POSITIVE, help="Pipeline stages."),
    size_option("--tp", "Tensor-parallel GPUs of a stage."),
    size_option("--dp", "Replicas."),
    size_option("--cp", "Context-parallel GPUs."),
    size_option("--vpp", "Stages of a rank (interleaved 1F1B)."),
    click.option("--sp/--no-sp", default=True, help="Sequence parallelism.  [on]"),
    size_option("--microbatches", "Microbatches of a replica's step.", 32),
    click.option("--tiles", type=_POSITIVE, help="Tiles of a microbatch.  [default: the model's]"),
    click.option("--tokens", type=_POSITIVE, help="Its tokens.  [default: the model's]"),
    click.option(
        "--encoder-speed",
        type=_POSITIVE,
        help="Per cent of the FLOP/s of the language model that encoders reach.  [80]",
    ),
)


class _LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer in a file of layers, `count` times; `parameters` are the whole layer's."""

    kind: str
    forward_ns: Whole
    backward_ns: Whole
    parameters: Whole
    output_bytes: Whole
    activation_bytes: Whole = 0
    input_bytes: Whole = 0
    working_bytes: Whole = 0
    count: Whole = 1

    def cost(self, tp: int) -> LayerCost:
        """Return the layer on one of tp GPUs."""
        given = msgspec.structs.asdict(self)
        del given["count"]
        # Its input is the size of its output, where nobody says otherwise.
        given["input_bytes"] = self.input_bytes or min(self.output_bytes, self.activation_bytes)
        given["parameters"] = -(-self.parameters // tp)
        return LayerCost(**given, weight_ns=self.backward_ns // 2)


class _LayerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layers: Annotated[tuple[_LayerEntry, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Setting:
    """The job as given on the command line: its layers' costs, and a layout without stages."""

    layers: tuple[LayerCost, ...]
    layout: ParallelLayout
    device: Device

    @property
    def stages(self) -> int:
        """Return the number of stages, of all ranks."""
        return self.layout.pp * self.layout.vpp


def with_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a job's options to a command, as its argument `setting`; None without a model."""

    @functools.wraps(command)
    def run(
        model: str | None,
        costs: Path | None,
        device: str,
        pp: int | None,
        tp: int,
        dp: int,
        cp: int,
        vpp: int,
        sp: bool,
        microbatches: int,
        tiles: int | None,
        tokens: int | None,
        encoder_speed: int | None,
        **rest: Any,
    ) -> Any:
        if model is None and costs is None:
            return command(setting=None, **rest)
        if pp is None:
            raise ValueError("--model needs --pp: the pipeline stages to cut it into")
        check_sizes(pp=pp, vpp=vpp, microbatches=microbatches)
        layout = ParallelLayout(
            tp=tp, pp=pp, dp=dp, cp=cp, vpp=vpp, microbatches=microbatches, sequence_parallel=sp,
            schedule="interleaved" if vpp > 1 else "1f1b",
        )  # fmt: skip
        found = read_device(device)
        if encoder_speed is not None:
            percent = max(1, found.efficiency_percent * encoder_speed // 100)
            found = replace(found, encoder_percent=percent)
        layers = layers_of(model, costs, found, layout, tiles, tokens)
        if pp * vpp > len(layers):
            raise ValueError(
                f"--pp {pp} x --vpp {vpp}: {model or costs} has {len(layers)} layers, one a stage"
            )
        return command(setting=Setting(layers, layout, found), **rest)

    return with_options(_OPTIONS)(run)


def layers_of(
    model: str | None,
    costs: Path | None,
    device: Device,
    layout: ParallelLayout,
    tiles: int | None,
    tokens: int | None,
) -> tuple[LayerCost, ...]:
    """Return the layers of a model by shapes, or of a file of measured ones."""
    if costs is not None:
        if model is not None:
            raise ValueError("give either --model, or --costs FILE of measured layers")
        entries = read_json_file(costs, _LayerFile).layers
        if (count := sum(entry.count for entry in entries)) > MOST_LAYERS:
            raise ValueError(f"{costs} has {count} layers, and {MOST_LAYERS} are planned at most")
        return tuple(one for entry in entries for one in [entry.cost(layout.tp)] * entry.count)
    read = read_model(str(model))
    return layer_costs(read, device, layout, amounts_of(read, tiles, tokens))


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


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """Return whole numbers of 1 or more that are written with commas between them.

    >>> parse_sizes("22,23", "--layers")
    (22, 23)
    """
    words = text.replace(",", " ").split()
    if not words or not all(map(is_count, words)):
        raise ValueError(f"{what} got {text!r}; give numbers of 1 or more such as 22,23,24")
    return tuple(map(int, words))


def draw_costs(path: Path, resource: str, count: int, seed: int) -> list[int]:
    """Return the costs of `count` samples, drawn from a data set's costs.

    `path`: a folder that `counterpoise analyze` wrote, or a table with a column of that name.
    Raises ValueError if it does not have that resource.
    """
    if path.is_dir():
        path /= "index.npz"
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; run counterpoise analyze")
    costs = open_table(path).costs([resource])[:, 0]
    found: list[int] = np.random.default_rng(seed).choice(costs, count).tolist()
    return found
