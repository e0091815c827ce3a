"""The headers of simulated samples, and of batches that simulated workers have laid out."""

from collections.abc import Iterable

from counterpoise.balancer.protocol.messages import LAID_OUT, Batch

SAMPLE = b"sample"


def batch_header(ordinals: Iterable[int]) -> bytes:
    """Return the header of a batch, which says what it has.

    >>> batch_header([3, 4])
    b'batch of 3 4'
    """
    return b"batch of %s" % " ".join(map(str, ordinals)).encode()


def why_unreadable(batch: Batch) -> str:
    """Return why no trainer could read a microbatch, "" if it can.

    It has samples, or is one payload that was laid out for just these.
    """
    headers = [item.header for item in batch.items]
    if all(header == SAMPLE for header in headers):
        return ""
    expected = batch_header(item.ordinal for item in batch.items)
    if headers != [expected] + [LAID_OUT] * (len(headers) - 1):
        return f"samples are not those that were laid out: {headers}"
    handles = batch.handles
    ends = [a + b for a, b in zip(handles.offsets, handles.lengths, strict=True)]
    if len({*handles.run_of}) > 1 or list(handles.offsets[1:]) != ends[:-1]:
        return f"parts of a batch are not side by side: {handles}"
    return ""
