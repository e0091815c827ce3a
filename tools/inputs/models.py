"""Reads the layers for `plan partition` and `plan recompute`: models by name, or a JSON file."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ...sched.planners.stage_split import LayerCost
from ...sched.planners.stage_split_models import (
    ENCODERS,
    IMAGES,
    LANGUAGES,
    TEXT_TOKENS,
    pair_layers,
)
from .json_files import read_json, read_object, whole
from .programs import add_options

_NUMBERS = ("forward_ns", "backward_ns", "parameters", "output_bytes")
_POSITIVE = click.IntRange(min=1)

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
        return command(setting=Setting(layers, stages, microbatches, tp), **rest)

    return add_options(run, _OPTIONS)


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
    raw = read_object(model, read_json(Path(model)), ("layers",), ())
    if not isinstance(raw["layers"], list) or not raw["layers"]:
        raise ValueError(f"{model}: give a list of layers, at least one")
    return tuple(layer for entry in raw["layers"] for layer in _repeated(model, entry))


def _repeated(model: str, raw: Any) -> list[LayerCost]:
    """Return a layer `count` times."""
    where = f"{model}: a layer"
    entry = read_object(where, raw, ("kind", *_NUMBERS), ("activation_bytes", "count"))
    numbers = {name: whole(f"{where}'s {name}", entry[name]) for name in _NUMBERS}
    kept = whole(f"{where}'s activation_bytes", entry.get("activation_bytes", 0))
    layer = LayerCost(str(entry["kind"]), **numbers, activation_bytes=kept)
    return [layer] * whole(f"{where}'s count", entry.get("count", 1))
