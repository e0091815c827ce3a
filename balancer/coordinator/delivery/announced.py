"""Take what a worker has announced: a payload for each decoded sample, wherever its bytes are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ...protocol.messages import LAID_OUT, DecodedItem, DecodeDone, Handles, PayloadServer
from .shared_payloads import SharedPayload, SharedPayloads, SharedRun


def take_announced(
    shared: SharedPayloads,
    worker: bytes,
    server: PayloadServer | None,
    message: DecodeDone,
    frames: Iterable[object],
) -> tuple[DecodeDone, list[Any]]:
    """Return the message with a payload for each item; items that are known are left out.

    frames: the payloads that came with it. server: whence ranks pull those that stay at the worker.
    """
    handles = message.handles
    if not handles.runs:
        return message, list(frames)
    runs = [shared.announce(worker, handle, server) for handle in handles.runs]
    new = [run for run in runs if run is not None]
    if len(new) == len(runs) and -1 not in handles.run_of:
        placed = _all_shared(shared, handles, new)
        _mark_parts(message.items, placed)
        return message, placed
    payloads: list[Any] = []
    # Some come along, as where the worker's memory was full, or the message was repeated in part.
    items, inline = [], iter(frames)
    for item, place in zip(message.items, handles.places(), strict=True):
        number, offset, nbytes = place
        run = None if number < 0 else runs[number]
        if number < 0:
            payloads.append(next(inline))
        elif run is not None:
            payloads.append(run.payload(offset, nbytes))
        else:
            continue
        items.append(item)
    _free_empty(shared, new)
    _mark_parts(items, payloads)
    return DecodeDone(message.lease, tuple(items), usual_us=message.usual_us), payloads


def _all_shared(
    shared: SharedPayloads, handles: Handles, runs: Sequence[SharedRun]
) -> list[SharedPayload]:
    """Return the payloads of items that all lie in new runs, which is what comes mostly."""
    for number, payloads in Counter(handles.run_of).items():
        runs[number].add(payloads)
    _free_empty(shared, runs)
    return [SharedPayload(runs[n], offset, nbytes) for n, offset, nbytes in handles.places()]


def _mark_parts(items: Sequence[DecodedItem], payloads: Sequence[Any]) -> None:
    """Note which payloads are parts of microbatches that are laid out."""
    headers = [item.header for item in items]
    if LAID_OUT not in headers:
        return
    begins = [number for number, header in enumerate(headers) if header != LAID_OUT]
    for begin, end in pairwise([*begins, len(headers)]):
        for payload in payloads[begin:end] if end > begin + 1 else ():
            # Ranks believe it of the workers of their own machine.
            if type(payload) is SharedPayload and payload.run.server is None:
                payload.parts = end - begin


def _free_empty(shared: SharedPayloads, runs: Iterable[SharedRun]) -> None:
    for run in runs:
        if not run.payloads:
            shared.free(run)
