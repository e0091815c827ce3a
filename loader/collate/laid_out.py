"""Reads microbatches that a worker has laid out: one payload, of which tensors are views."""

from typing import Any

from ...balancer.protocol.messages import LAID_OUT
from ...balancer.protocol.rank_session import Arrival
from ...workers.codec.frames import decode_packed
from ...workers.lending.placed_payloads import PlacedPayloads


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
