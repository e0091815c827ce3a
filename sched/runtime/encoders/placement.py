"""Encoders as a user describes them, and where a program has their layers.

Every rank of an encoder pipeline runs as many layers of each encoder (Optimus, 2025, section 4.4),
encoder by encoder: of 4 and 2 layers in pipelines of 2 ranks, EF_C is one of the second encoder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from ...ir.kinds import layer_number
from ...ir.program import Pass, Program
from ..gradients import refuse_sharded
from ..parts import TensorSpec, count_tokens


class LayerPlace(NamedTuple):
    """The layer that a pass runs. `lowest`, `highest`: whether it is that of its encoder there."""

    encoder: int
    number: int
    lowest: bool
    highest: bool


@dataclass(frozen=True, slots=True)
class EncoderPlacement:
    """The places of all encoder layers.

    `share`: for each encoder the layers that a rank runs. `position`: of each rank with encoder
    passes, its place in its encoder pipeline. `width`: the ranks of an encoder pipeline.
    `part`: of each rank, the encoder that it runs, where each is a part of one that is spread.
    """

    share: tuple[int, ...] = ()
    position: Mapping[int, int] = field(default_factory=dict)
    width: int = 1
    part: Mapping[int, int] = field(default_factory=dict)

    def layer(self, pass_: Pass) -> LayerPlace:
        """Return the layer that a pass runs, forward or backward."""
        local = layer_number(pass_.kind)
        if self.part:
            last = self.share[0] - 1
            return LayerPlace(self.part[pass_.stage], local, local == 0, local == last)
        for encoder, share in enumerate(self.share):
            if local < share:
                number = self.position[pass_.stage] * share + local
                return LayerPlace(encoder, number, local == 0, local == share - 1)
            local -= share
        raise ValueError(f"{pass_} is no layer of {len(self.share)} encoders")

    def on_rank(self, rank: int, encoder: int) -> range:
        """Return the numbers of an encoder's layers that a rank runs, none on other ranks."""
        if rank not in self.position or self.part.get(rank, encoder) != encoder:
            return range(0)
        share = self.share[encoder]
        return range(self.position[rank] * share, (self.position[rank] + 1) * share)

    def is_last(self, pass_: Pass) -> bool:
        """Return whether a pass is one of its encoder's last layer, that makes features."""
        return self.layer(pass_).highest and self.position[pass_.stage] == self.width - 1


def place_encoders(
    program: Program, layers: Sequence[int], *, parts: bool = False
) -> EncoderPlacement:
    r"""Return the placement of encoders with these numbers of layers in a program.

    `parts`: whether each is a part of one that is spread, on a rank of its own.

    Raises ValueError if the program's passes are not those of such encoders.

    >>> from counterpoise.sched import parse_program
    >>> text = "placement: 0 1\nmicrobatches: 1\nedges: 0EF_A0->1EF_A0 0EF_B0->1EF_B0\n"
    >>> text += "0: 0EF_A0 0EF_B0 0F0\n1: 1EF_A0 1EF_B0 1F0"
    >>> found = place_encoders(parse_program(text), [2, 2])
    >>> found.layer(Pass(1, "EF_B", 0))
    LayerPlace(encoder=1, number=1, lowest=True, highest=True)
    """
    held: dict[int, set[int]] = {}
    for pass_ in (pass_ for row in program.ranks for pass_ in row if is_encoder(pass_, "EF")):
        held.setdefault(pass_.stage, set()).add(layer_number(pass_.kind))
    if bool(held) != bool(layers):
        raise ValueError(
            "encoder passes and encoders= go together: "
            + (
                "give an EncoderSpec for each encoder of this schedule"
                if held
                else f"the schedule {program.name!r} has no encoder passes; fill it with some"
            )
        )
    position = _positions(program, held)
    # The last rank of a pipeline is as many hops from its first as there are ranks before it.
    width = 1 + max(position.values(), default=0)
    _check_counts(held, position, layers[:1] if parts else layers, width)
    part = {rank: number for number, rank in enumerate(sorted(held))} if parts else {}
    return EncoderPlacement(tuple(count // width for count in layers), position, width, part)


def _positions(program: Program, ranks: Mapping[int, set[int]]) -> dict[int, int]:
    """Return each rank's place in its encoder pipeline: how many hops lead to it."""
    before: dict[int, int] = {}
    for source, target in program.edges:
        if not (is_encoder(source, "EF") and is_encoder(target, "EF")):
            continue
        if before.setdefault(target.stage, source.stage) != source.stage:
            raise ValueError(
                f"encoder passes of rank {target.stage} follow those of ranks "
                f"{before[target.stage]} and {source.stage}; put each rank into one pipeline"
            )
    positions: dict[int, int] = {}
    for rank in sorted(ranks):
        hops, at = 0, rank
        while at in before:
            hops, at = hops + 1, before[at]
            if hops > len(ranks):
                raise ValueError(f"the encoder pipeline of rank {rank} goes around in a circle")
        positions[rank] = hops
    return positions


def _check_counts(
    held: Mapping[int, set[int]], position: Mapping[int, int], layers: Sequence[int], width: int
) -> None:
    """Raise ValueError if a rank's passes are not an equal share of every encoder's layers."""
    if any(count % width for count in layers):
        raise ValueError(
            f"encoders of {', '.join(map(str, layers))} layers do not divide into pipelines of "
            f"{width} ranks; fill the schedule with narrower ones"
        )
    share = sum(count // width for count in layers)
    for rank, numbers in sorted(held.items()):
        if numbers != set(range(share)):
            raise ValueError(
                f"rank {rank} runs {len(numbers)} encoder layers in the schedule; encoders of "
                f"{', '.join(map(str, layers))} layers in pipelines of {width} ranks make {share}"
            )
    places = sorted(position.values())
    if any(places.count(place) != places.count(0) for place in range(width)):
        raise ValueError(f"the encoder pipelines are not all {width} ranks long; make them equal")


def is_encoder(pass_: Pass, direction: str = "E") -> bool:
    """Return whether a pass is an encoder's: "EF", "EB", or "E" for both."""
    return pass_.kind[:2] in ("EF", "EB") and pass_.kind.startswith(direction)


Shape = Callable[[Any], tuple[int, ...] | Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder whose passes run between those of the language model, the same on every rank.

    Args:
        name: Of the encoder, and of its features as `merge` gets them.
        modules: Its layers from the inputs up, one for each pass EF_A, EF_B ... over all ranks of
            an encoder pipeline. Each is called with the tensors that the one below returns, the
            first with the fields `inputs`; the last one's tensor is the features. None stands for a
            layer that other ranks run.
        tokens: The number of features of a microbatch, by cost ({"tiles": 256}) or as a function of
            its info; a microbatch of 0 is not encoded.
        width: Of a feature, so features are (tokens, width).
        inputs: Names of fields; default ("pixel_values",).
        hidden: From a microbatch's info, the shape of what a rank of the encoder hands to the next
            one, or the shapes of several tensors; default: that of the features.
        trainable: False freezes its parameters; default True.
        dtype: The precision of what crosses ranks; default torch.float32.
        layer_names: The beginnings of the layers' tensors' names in the whole model, such as
            "visual.blocks.0", for checkpoints; default `encoders.NAME.NUMBER`.
        extras: Fields that every rank of the encoder gets; default: none.
        prepare: Called with them by keyword, once for a microbatch on each rank, returns what its
            layers are called with by keyword (rotary embeddings); default: the fields.
        pieces: Passes of each layer, whose method `pieces()` returns so many modules to run in its
            place, with its names of tensors. Fill a schedule with that many times as many layers,
            then; default 1.
        images: The number of a microbatch's images, all alike, by cost or as a function of its
            info, for Units(spread=True); default: not known.

    Raises ValueError for layers that do not fit.
    """

    name: str
    modules: Sequence[nn.Module | None]
    tokens: Mapping[str, int] | Callable[[Any], int]
    width: int
    inputs: tuple[str, ...] = ("pixel_values",)
    hidden: Shape | None = None
    trainable: bool = True
    dtype: torch.dtype = torch.float32
    layer_names: Sequence[str] = ()
    extras: tuple[str, ...] = ()
    prepare: Callable[..., Mapping[str, Any]] | None = None
    pieces: int = 1
    images: Mapping[str, int] | Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        """Freeze what is not to be trained. Raises ValueError for layers that do not fit."""
        if not self.modules:
            raise ValueError(f"the encoder {self.name!r} has no layers; give at least one module")
        if self.layer_names and len(self.layer_names) != len(self.modules):
            raise ValueError(
                f"the encoder {self.name!r} has {len(self.modules)} layers and "
                f"{len(self.layer_names)} layer_names; give one for each layer"
            )
        if self.pieces != 1:
            cuts = [self._cut(number) for number in range(len(self.modules))]
            # From here on each piece is a layer.
            object.__setattr__(self, "modules", [module for pieces in cuts for module in pieces])
        for number, module in self.layers():
            refuse_sharded(module, f"layer {number} of the encoder {self.name!r}", "without images")
            if not self.trainable:
                module.requires_grad_(False)

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in the whole model."""
        layer = number // self.pieces
        return self.layer_names[layer] if self.layer_names else f"encoders.{self.name}.{layer}"

    def _cut(self, number: int) -> Sequence[nn.Module | None]:
        """Return the pieces of a layer. Raises ValueError if it has no, or other, pieces."""
        layer = self.modules[number]
        if layer is None:
            return (None,) * self.pieces
        cut: Any = getattr(layer, "pieces", None)
        pieces = [] if cut is None else [*cut()]
        if len(pieces) != self.pieces:
            raise ValueError(
                f"layer {number} of the encoder {self.name!r}, a {type(layer).__name__}, has "
                f"{len(pieces) or 'no'} pieces, and not {self.pieces}; give it a method pieces() "
                "that returns so many modules, or another number as pieces="
            )
        return pieces

    def layers(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield the layers that this rank was given, with their numbers."""
        yield from ((n, module) for n, module in enumerate(self.modules) if module is not None)

    def count(self, info: Any) -> int:
        """Return the number of features of a microbatch. Raises ValueError for a missing cost."""
        return count_tokens(f"the encoder {self.name!r}", self.tokens, info)

    def features_spec(self, info: Any) -> TensorSpec:
        """Return the features of a microbatch; their gradient is alike."""
        return TensorSpec((self.count(info), self.width), self.dtype)

    def hidden_spec(self, info: Any) -> TensorSpec:
        """Return what a rank of the encoder hands to the next one; without features, nothing."""
        if self.hidden is None or not self.count(info):
            return self.features_spec(info)
        shape: Any = tuple(self.hidden(info))
        if not shape or isinstance(shape[0], int):
            return TensorSpec(shape, self.dtype)
        parts = tuple(map(tuple, shape))
        return TensorSpec((sum(map(prod, parts)),), self.dtype, parts)
