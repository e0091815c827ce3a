"""An encoder as a user describes it: its layers, what they take, and the size of its features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..gradients import is_sharded
from ..parts.reading import count_tokens
from ..parts.step_data import TensorSpec

Shape = Callable[[Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder whose passes run between those of the language model, the same on every rank.

    `modules`: its layers from the inputs up, one for each pass EF_A, EF_B ... of the schedule over
    all ranks of an encoder pipeline: layers, or groups of kernels if the plan cuts finer. Each is
    called with one tensor, the result of the one below, and returns one; the first is called with
    the fields `inputs`. None stands for a layer that other ranks run. `tokens`: the number of
    features of a microbatch, by cost ({"tiles": 256}) or as a function of its info; a microbatch of
    0 is not encoded. `width`: of a feature, so features are (tokens, width). `hidden`: the shape
    of what a rank of the encoder hands to the next one, from a microbatch's info; by default that
    of the features. `trainable`: False freezes its parameters. `dtype`: the precision of what
    crosses ranks. `layer_names`: of the layers in the whole model, as "visual.blocks.0", under
    which checkpoints hold them; by default `encoders.NAME.NUMBER`.
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

    def __post_init__(self) -> None:
        """Freeze what is not to be trained.

        Raises ValueError for no layers, sharded ones, and names of which not each is one layer's.
        """
        if not self.modules:
            raise ValueError(f"the encoder {self.name!r} has no layers; give at least one module")
        if self.layer_names and len(set(self.layer_names)) != len(self.modules):
            raise ValueError(
                f"the encoder {self.name!r} has {len(self.modules)} layers and "
                f"{len(set(self.layer_names))} different layer_names; give one for each layer"
            )
        for number, module in self.layers():
            if is_sharded(module):
                raise ValueError(
                    f"layer {number} of the encoder {self.name!r} is sharded with FSDP2, whose "
                    "collectives ranks without images would not enter; give the plain module, the "
                    "pipeline sums its gradients over all ranks that have a copy"
                )
            if not self.trainable:
                module.requires_grad_(False)

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in the whole model."""
        return self.layer_names[number] if self.layer_names else f"encoders.{self.name}.{number}"

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
        return TensorSpec(tuple(self.hidden(info)), self.dtype)
