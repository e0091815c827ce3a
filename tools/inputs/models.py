"""Reads what the layout planners are given: models by name or file, sizes, costs of samples."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import numpy as np

from ...sched.ir.typed_json import Whole, read_json_file
from ...sched.planners.stage_split import LayerCost
from ...sched.planners.stage_split_models import (
    ENCODERS,
    IMAGES,
    LANGUAGES,
    TEXT_TOKENS,
    pair_layers,
)
from .files import open_table
from .programs import check_sizes, is_count, with_options

_POSITIVE = click.IntRange(min=1)
MOST_LAYERS = 1000

_OPTIONS = (
    click.option(
        "--model",
        metavar="ENCODER+LANGUAGE|FILE",
        help="A pair such as internvit-6b+internlm2-20b, or a JSON file of layers.",
    ),
    click.option("--stages", type=_POSITIVE, help="Pipeline stages."),
    click.option("--microbatches", default=32, show_default=True, type=_POSITIVE),
    click.option("--tp", default=1, show_default=True, type=_POSITIVE, help="TP of a pair."),
    click.option("--images", default=IMAGES, show_default=True, type=_POSITIVE),
    click.option("--tokens", default=TEXT_TOKENS, show_default=True, type=_POSITIVE),
    click.option(
        "--encoder-speed",
        default=100,
        show_default=True,
        type=_POSITIVE,
        help="Per cent of the FLOP/s of the language model that the encoder reaches.",
    ),
)


class _LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer in a file of layers, `count` times."""

    kind: str
    forward_ns: Whole
    backward_ns: Whole
    parameters: Whole
    output_bytes: Whole
    activation_bytes: Whole = 0
    count: Whole = 1

    def cost(self) -> LayerCost:
        """Return the layer."""
        fields = msgspec.structs.asdict(self)
        del fields["count"]
        return LayerCost(**fields)


class _LayerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layers: Annotated[tuple[_LayerEntry, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Setting:
    """The model and its microbatches, as given on the command line."""

    layers: tuple[LayerCost, ...]
    stages: int
    microbatches: int
    tp: int


def with_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a model to a command, as its argument `setting`; None without --model."""

    @functools.wraps(command)
    def run(
        model: str | None,
        stages: int | None,
        microbatches: int,
        tp: int,
        images: int,
        tokens: int,
        encoder_speed: int,
        **rest: Any,
    ) -> Any:
        if model is None:
            return command(setting=None, **rest)
        if stages is None:
            raise ValueError("--model needs --stages: the pipeline stages to cut it into")
        layers = _layers(model, tp, images, tokens, encoder_speed)
        if stages > len(layers):
            raise ValueError(f"--stages {stages}: {model} has {len(layers)} layers, one a stage")
        check_sizes(stages=stages, microbatches=microbatches)
        return command(setting=Setting(layers, stages, microbatches, tp), **rest)

    return with_options(_OPTIONS)(run)


def _layers(
    model: str, tp: int, images: int, tokens: int, encoder_speed: int
) -> tuple[LayerCost, ...]:
    encoder, plus, language = model.partition("+")
    if plus and not Path(model).is_file():
        return pair_layers(
            encoder, language, tp=tp, images=images, tokens=tokens, encoder_percent=encoder_speed
        )
    if not Path(model).is_file():
        raise ValueError(
            f"--model {model!r} is no file; name a pair with + between one of "
            f"{', '.join(ENCODERS)} and one of {', '.join(LANGUAGES)}"
        )
    entries = read_json_file(Path(model), _LayerFile).layers
    if (count := sum(entry.count for entry in entries)) > MOST_LAYERS:
        raise ValueError(f"{model} has {count} layers, and {MOST_LAYERS} are planned at most")
    return tuple(layer for entry in entries for layer in [entry.cost()] * entry.count)


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
