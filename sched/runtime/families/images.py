"""The encoder of a model with images, and the merging of its features."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..encoders.placement import EncoderSpec
from ..settings import Merge
from ..stage.splitting import CallLayer
from .description import Constants, Features, ImageFamily

# What the encoder is called in a program's parts and in `merge`.
IMAGES = "images"


class ImageFeatures(nn.Module):
    """The modules of a model that make features, under their names in it, called as it does."""

    def __init__(self, base: Any, names: tuple[str, ...], features: Features) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, getattr(base, name))
        # the model's own method makes features: it is called on a copy that has these modules alone
        model = copy.copy(base)
        model.__dict__ = {**base.__dict__, "_modules": self._modules, "_parameters": {}}
        self._call = (features, model)

    def forward(self, *fields: Tensor) -> Tensor:
        """Return the features (tokens, width) of a microbatch."""
        features, model = self._call
        return features(model, *fields)


@dataclass(frozen=True, eq=False, slots=True)
class ImageEncoder:
    """The encoder of a model, and what its features become.

    `config`: of the whole model. `base`: the name of the module that has the encoder. `width`: of
    the hidden states. `layers`: the encoder's, one for each of its passes; `constants`: makes what
    they need, where the encoder is cut into several.
    """

    family: ImageFamily
    config: Any
    module: ImageFeatures
    base: str
    width: int
    layers: Sequence[nn.Module]
    constants: Constants | None

    @property
    def stacked(self) -> int:
        """Return how many features a token has beside its first."""
        return int(self.family.stacked(self.config))

    def spec(self, dtype: torch.dtype, **fields: Any) -> EncoderSpec:
        """Return the encoder as the pipeline runs it. `fields`: other ones of EncoderSpec."""
        inputs, base, tokens = self.family.inputs, self.base, self.family.tokens(self.config)
        fields = {"tokens": tokens, "dtype": dtype, **fields}
        constants: Any = self.constants
        if constants is not None:
            base, inputs = f"{base}.{self.family.encoder[0]}", inputs[:1]
            prepare = replace(constants, dtype=fields["dtype"])
            more = {"extras": self.family.inputs[1:], "prepare": prepare}
            fields = {"hidden": partial(self._handed, tokens), **more, **fields}
        return EncoderSpec(
            IMAGES,
            self.layers,
            width=self.width * (1 + self.stacked),
            inputs=inputs,
            layer_names=(base,) * len(self.layers),
            **fields,
        )

    def _handed(self, tokens: Any, info: Any) -> list[tuple[int, int]]:
        """Return the shapes of what the layers of a tower hand on."""
        vision, count = self.config.vision_config, tokens(info)
        width = getattr(vision, "embed_dim", vision.hidden_size)
        patches = count * vision.spatial_merge_size**2
        return [(patches, width), *[(count, self.width)] * self.stacked]

    def encode(self, *fields: Tensor) -> Tensor:
        """Return the features (tokens, width) of a microbatch, layer by layer."""
        if self.constants is None:
            return self.module(*fields)  # type: ignore[no-any-return]
        constants = self.constants(**dict(zip(self.family.inputs[1:], fields[1:], strict=True)))
        tensors: Any = fields[:1]
        for layer in self.layers:
            tensors = layer(*tensors, **constants)
            tensors = tensors if isinstance(tensors, tuple) else (tensors,)
        return tensors[0]  # type: ignore[no-any-return]

    def merging(self, words: str, fields: Mapping[str, Any]) -> dict[str, CallLayer]:
        """Return the call of the embedding `words` that merges the images of one microbatch."""
        if any(fields.get(name) is None for name in self.family.inputs):
            return {}
        with torch.no_grad():
            features = {IMAGES: self.encode(*(fields[name] for name in self.family.inputs))}
        return {words: lambda module, ids, _: self.merge(module(ids), features, {"input_ids": ids})}

    @property
    def merge(self) -> Merge:
        """Return what merges features into words; it holds no module."""
        return partial(_merge, self.config.image_token_id)


def _merge(
    token: int, embeddings: Tensor, features: Mapping[str, Tensor], fields: Mapping[str, Any]
) -> Tensor:
    """Return words with images in their places; features that layers add follow as rows."""
    images = features[IMAGES].to(embeddings.dtype)
    places = (fields["input_ids"] == token)[..., None]
    first, *more = torch.split(images, embeddings.shape[-1], -1)
    rows = [torch.zeros_like(embeddings).masked_scatter(places, added) for added in more]
    return torch.cat([embeddings.masked_scatter(places, first), *rows], 1)
