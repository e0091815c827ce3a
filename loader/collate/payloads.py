"""Gives access to the bytes of a payload, however it was transported, and to a whole batch in one.

A worker that has all samples of a microbatch may lay it out: it comes as one payload then, of which
tensors are views.
"""

from typing import Any

import numpy as np

from ...balancer.protocol.messages import LAID_OUT
from ...balancer.protocol.rank_session import Arrival
from ...workers.codec.frames import decode_packed
from ...workers.lending.placed_payloads import PlacedPayloads

# Tensors are used where they arrived, unless they would lie across machine words.
_WORD_BYTES = 8


def payload_buffer(payload: Any) -> memoryview:
    """Return a payload's memory: a ZeroMQ frame's own, or a buffer's; copied if not aligned.

    >>> bytes(payload_buffer(bytearray(b"pixels")))
    b'pixels'
    """
    if type(payload) is memoryview:
        return payload  # of a worker's memory, where each begins at a multiple of 64
    view = bytes_of(payload)
    if view.nbytes and _address(view) % _WORD_BYTES:
        return memoryview(bytearray(view))
    return view


def bytes_of(payload: Any) -> memoryview:
    """Return a payload's memory, wherever it begins."""
    if type(payload) is memoryview:
        return payload
    whole = memoryview(getattr(payload, "buffer", payload))
    return whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")


def _address(view: memoryview) -> int:
    # Many times faster than .ctypes.data
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def is_laid_out(arrival: Arrival) -> bool:
    """Return whether a worker of this machine has laid out a microbatch, and its payload is here.

    Nobody else is believed it.
    """
    items = arrival.batch.items
    is_one_payload = len(items) > 1 and items[1].header == LAID_OUT
    return is_one_payload and isinstance(arrival.payloads, PlacedPayloads)


def read_laid_out(arrival: Arrival) -> Any:
    """Return the batch of a microbatch that is laid out, as views of the worker's memory."""
    payloads: Any = arrival.payloads
    places = payloads.handles
    run, begin = payloads.runs[places.run_of[0]], places.offsets[0]
    # The samples' parts lie side by side.
    whole = run[begin : begin + sum(places.lengths)]
    return decode_packed(arrival.batch.items[0].header, whole, allow_object=True)
