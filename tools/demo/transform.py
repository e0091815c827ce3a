"""The demo's tokenizer, and its transform under a name that `analyze` accepts.

counterpoise analyze DATA --transform counterpoise.tools.demo.transform:transform
"""

from typing import Any

import numpy as np

from ...workers import VisionLanguage
from ...workers.vision_language.token_layout import ByteTokenizer

# Most tokens of a text between two images, so that a CPU can train on long ones.
MOST_TOKENS = 256


class ClippedBytes(ByteTokenizer):
    """Bytes as tokens, the first of each text: no sample and no image is lost."""

    def __call__(self, text: str) -> list[int]:
        """Return the first bytes of a text."""
        return super().__call__(text[:MOST_TOKENS])[:MOST_TOKENS]

    def array(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the first bytes of a text as uint8 (n,)."""
        return super().array(text[:MOST_TOKENS])[:MOST_TOKENS]

    def spec(self) -> dict[str, Any]:
        """Return the specification from which a remote worker makes the same tokenizer."""
        return {"name": f"{__name__}:ClippedBytes", "args": {}}


transform = VisionLanguage(ClippedBytes(), tile_size=32, max_tiles=6, tokens_per_tile=4)
