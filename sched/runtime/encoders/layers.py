"""A rank's part of an encoder, and the sizes of what its layers hand on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..parts.step_data import TensorSpec

Shape = Callable[[Any], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EncoderLayers:
    """The layers of an encoder that one rank runs, and what a microbatch's features look like.

    `layers`: this rank's modules by number: EF_A and EB_A run number 0 (EF and EB, too), EF_B and
    EB_B number 1; none on a rank without encoder passes. Each is called with one tensor, the result
    of the layer below, and returns one; the first layer of an encoder is called with the fields
    `inputs`. `features`: from a microbatch's info to the shape of what the last layer gives, which
    the language model's stage gets as its last argument. `hidden`: the same for what goes from rank
    to rank inside an encoder, by default as `features`. `dtype`: the precision of both.
    """

    layers: Mapping[int, nn.Module]
    features: Shape
    hidden: Shape | None = None
    inputs: tuple[str, ...] = ("pixel_values",)
    dtype: torch.dtype = torch.float32

    def features_spec(self, info: Any) -> TensorSpec:
        """Return the features of a microbatch; their gradient is alike."""
        return TensorSpec(tuple(self.features(info)), self.dtype)

    def hidden_spec(self, info: Any) -> TensorSpec:
        """Return what a rank of the encoder hands to the next one."""
        return TensorSpec(tuple((self.hidden or self.features)(info)), self.dtype)
