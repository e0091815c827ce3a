"""The demo's settings, its tokenizer, and its transform under a name that `analyze` accepts.

counterpoise analyze DATA --transform counterpoise.tools.demo.transform:transform
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...workers import VisionLanguage
from ...workers.vision_language.token_layout import ByteTokenizer

VIRTUAL_RANKS = 8


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings that all runs share."""

    data: str
    seed: int = 0
    workers: int = 2
    samples_per_step: int = 64
    batch_size: int = 4
    tile_size: int = 32
    max_tiles: int = 6
    tokens_per_tile: int = 4
    text_limit: int = 256
    width: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        each = VIRTUAL_RANKS * self.batch_size
        if self.samples_per_step < each or self.samples_per_step % each:
            raise ValueError(
                f"{self.samples_per_step} samples per step: a step has {VIRTUAL_RANKS} ranks x "
                f"{self.batch_size} samples or a multiple of it ({each}, {2 * each}, ...)"
            )


class ClippedBytes(ByteTokenizer):
    """Bytes as tokens, at most `limit` of each text, so that a CPU can train on long ones.

    Only text between two images is cut: no sample and no image is lost.

    >>> ClippedBytes(3)("hello")
    [104, 101, 108]
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit} tokens; give 1 or more")
        self.limit = limit

    def __call__(self, text: str) -> list[int]:
        """Return the first bytes of a text."""
        return super().__call__(text[: self.limit])[: self.limit]

    def array(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the first bytes of a text as uint8 (n,)."""
        return super().array(text[: self.limit])[: self.limit]

    def spec(self) -> dict[str, Any]:
        """Return the specification from which a remote worker makes the same tokenizer."""
        return {"name": f"{__name__}:ClippedBytes", "args": {"limit": self.limit}}


def make_transform(settings: DemoSettings) -> VisionLanguage:
    """Return the transform that makes training samples of the demo's raw ones."""
    return VisionLanguage(
        ClippedBytes(settings.text_limit),
        tile_size=settings.tile_size,
        max_tiles=settings.max_tiles,
        tokens_per_tile=settings.tokens_per_tile,
    )


transform = make_transform(DemoSettings(""))
