"""Gives access to the bytes of a payload, however it was transported."""

from typing import Any

import numpy as np

# Tensors are used where they arrived, unless they would lie across machine words.
_WORD_BYTES = 8


def payload_buffer(payload: Any) -> memoryview:
    """Return a payload's memory: a ZeroMQ frame's own, or a buffer's; copied if not aligned.

    >>> bytes(payload_buffer(bytearray(b"pixels")))
    b'pixels'
    """
    whole = memoryview(getattr(payload, "buffer", payload))
    view = whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")
    if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % _WORD_BYTES:
        return memoryview(bytearray(view))
    return view
