"""The demo's tokenizer: the first bytes of each piece of text."""

from typing import Any

import numpy as np

from ...workers.vision_language.tokenizer import ByteTokenizer


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
