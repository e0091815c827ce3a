"""A byte-level tokenizer for demos and tests; for training bring your own.

A tokenizer is any callable from text to token ids. Attributes that this one has and others may
have (`bos_id`, `image_id`...) are taken as defaults by the vision-language transform.
"""

import os
import threading
from collections.abc import Iterable

import numpy as np

from ..sources.registry import name_of

_lock = threading.Lock()


def one_at_a_time() -> threading.Lock:
    """Return the lock under which this process calls tokenizers that others have made.

    Those of Hugging Face, say, raise "Already borrowed" where two threads call one at a time.
    """
    return _lock


def _renew_lock() -> None:
    """Make another lock in a forked child: the thread that holds this one may not be there."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class ByteTokenizer:
    """UTF-8 bytes as tokens 0..255, then the special ones. Nothing is lost, nothing is learned.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("hé")
    [104, 195, 169]
    >>> tokenizer.decode([257, 104, 195, 169, 258])
    'hé'
    """

    pad_id = 256
    bos_id = 257
    eos_id = 258
    image_id = 259
    human_id = 260
    assistant_id = 261
    vocab_size = 262

    def __call__(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the tokens that are bytes; the special ones are left out."""
        text = bytes(int(token) for token in ids if token < self.pad_id)
        return text.decode("utf-8", "replace")

    def spec(self) -> dict[str, object]:
        """Return what a remote worker needs to make the same tokenizer."""
        return {"name": name_of(type(self)), "args": {}}

    def array(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the bytes of a text as uint8 (n,), without a Python object for each."""
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)

    def count(self, text: str) -> int:
        """Return how many bytes a text has."""
        return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
