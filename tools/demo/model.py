"""A small but complete vision-language model: patches, ViT, projector, causal decoder.

Tiles become patches, pass a bidirectional transformer, are merged to a few tokens each (as
InternVL's pixel shuffle does), projected, and take the places of the image tokens in the text.
The decoder reads both layouts: padded rows, and packs in which no sample sees another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100
Bounds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DemoModelShape:
    """Sizes of the model: pixels for tiles and patches, tokens for the rest.

    tokens_per_tile is a square number, whose root divides tile / patch.
    """

    vocabulary: int
    image_token: int
    tile: int = 32
    patch: int = 8
    tokens_per_tile: int = 4
    width: int = 64
    depth: int = 2
    heads: int = 4
    vision_depth: int = 2

    @property
    def patches(self) -> int:
        """Number of patches per tile."""
        return (self.tile // self.patch) ** 2


class TransformerBlock(nn.Module):
    """One pre-norm transformer block; attention stays within each segment of the sequence."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, bounds: Bounds | None, rotary: Tensor | None = None) -> Tensor:
        """Map (B, n, width) to the same shape; bounds (0, ..., n) cut a pack into its samples."""
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        x = x + self.out(self._attend(q, k, v, bounds).flatten(-2))
        mixed: Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bounds: Bounds | None) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = [
            functional.scaled_dot_product_attention(
                q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], is_causal=self.causal
            )
            for a, b in pairwise(bounds or (0, q.shape[2]))
        ]
        return torch.cat(attended, dim=2).transpose(1, 2)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of features of x (B, n, heads, d) by angles (B or 1, n, 1, d / 2): RoPE."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Vision(nn.Module):
    """The encoder: tiles uint8 (tiles, 3, S, S) to features (tiles, tokens_per_tile, width)."""

    def __init__(self, shape: DemoModelShape) -> None:
        super().__init__()
        self.shape = shape
        merged = shape.width * shape.patches // shape.tokens_per_tile
        self.embed = nn.Conv2d(3, shape.width, shape.patch, stride=shape.patch)
        self.places = nn.Parameter(torch.randn(shape.patches, shape.width) * 0.02)
        self.blocks = nn.ModuleList(
            TransformerBlock(shape.width, shape.heads, causal=False)
            for _ in range(shape.vision_depth)
        )
        self.project = nn.Sequential(nn.LayerNorm(merged), nn.Linear(merged, shape.width))

    def forward(self, tiles: Tensor) -> Tensor:
        """Encode all tiles of a microbatch at once."""
        x = self.embed(tiles.float() / 127.5 - 1).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, None)
        features: Tensor = self.project(self._merge(x))
        return features

    def _merge(self, x: Tensor) -> Tensor:
        """Join neighbouring patches: (tiles, patches, width) to (tiles, tokens_per_tile, more)."""
        side = round(self.shape.tokens_per_tile**0.5)
        merge_side = self.shape.tile // self.shape.patch // side
        x = x.reshape(len(x), side, merge_side, side, merge_side, self.shape.width).transpose(2, 3)
        return x.reshape(len(x), side * side, merge_side**2 * self.shape.width)


class VisionLanguageModel(nn.Module):
    """The model: a padded or packed batch to logits (B, n, vocabulary)."""

    def __init__(self, shape: DemoModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.vision = Vision(shape)
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(
            TransformerBlock(shape.width, shape.heads, causal=True) for _ in range(shape.depth)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Return a logit for every token and every place of the batch."""
        ids: Tensor = batch["input_ids"]
        x = self._place_images(self.embed(ids), ids, batch)
        bounds = tuple(batch["cu_seq_lens"].tolist()) if "cu_seq_lens" in batch else None
        positions = batch.get("position_ids", torch.arange(ids.shape[1])[None])
        half = self.shape.width // self.shape.heads // 2
        angles = positions[..., None, None] * 1e4 ** (-torch.arange(half) / half)
        for block in self.blocks:
            x = block(x, bounds, angles)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _place_images(self, x: Tensor, ids: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Put the features of all owned tiles on the image tokens; a dummy tile's weigh 0.

        The encoder runs in every microbatch, on no tiles where there are none: DDP waits for the
        gradients of all parameters.
        """
        tiles = batch.get("pixel_values")
        if tiles is None or not len(tiles):
            tiles = torch.zeros(0, 3, self.shape.tile, self.shape.tile, dtype=torch.uint8)
        features = self.vision(tiles)
        owned = features[: int(batch["tiles_per_image"].sum())].flatten(0, 1)
        places = ids == self.shape.image_token
        if int(places.sum()) != len(owned):
            raise ValueError(
                f"{int(places.sum())} image tokens for {len(owned)} features of "
                f"{len(tiles)} tiles; the transform and the model must agree on "
                f"tokens_per_tile={self.shape.tokens_per_tile}"
            )
        owned = owned.to(x.dtype)  # another one under autocast
        placed: Tensor = x.masked_scatter(places[..., None], owned) + 0 * features.sum()
        return placed


def sum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of cross entropies over label tokens; place i predicts the label of i + 1."""
    loss: Tensor = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return loss
