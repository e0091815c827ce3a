"""Reads microbatches that a worker has laid out: one payload, of which tensors are views."""

from typing import Any

from ...balancer.protocol.messages import LAID_OUT, Batch
from ...balancer.protocol.rank_session import Arrival
from ...workers.codec.frames import decode_packed
from ...workers.lending.placed_payloads import PlacedPayloads


def is_laid_out(batch: Batch) -> bool:
    """Return whether a worker has laid out a microbatch."""
    return len(batch.items) > 1 and batch.items[1].header == LAID_OUT


def read_laid_out(arrival: Arrival) -> Any:
    """Return the batch of a microbatch that is laid out, as views of the worker's memory.

    Of an arrival with its payloads, which are parts of one, side by side.
    """
    payloads = arrival.payloads
    if isinstance(payloads, PlacedPayloads):
        run, places = payloads.runs[payloads.handles.run_of[0]], payloads.handles
        begin = places.offsets[0]
        whole = run[begin : begin + sum(places.lengths)]
    else:
        whole = memoryview(bytearray().join(payloads))  # type: ignore[arg-type]
    return decode_packed(arrival.batch.items[0].header, whole, allow_object=True)
