"""Finds results of workers that cannot be right, and the workers to blame for them.

A result is *rubbish* if no worker of this version could send it: of a sample that is not on its
lease, with another number of costs, with a payload that is not what its header says. The sample is
leased again. Who is blamed a few times is turned away by the handlers.
"""

from collections.abc import Callable

import msgspec

from ...protocol.parts import DecodedItem, Probed
from ..delivery.sample import Payload, Sample

# Returns why a payload cannot be read with its header (workers/codec/fields.py), or "".
LayoutCheck = Callable[[bytes, object], str]
# A payload cannot be larger than the largest frame; that of another host is smaller.
MAX_PAYLOAD_BYTES = 8 << 30
MAX_PULLED_BYTES = 1 << 30
SHOWN = 80


class Blame(msgspec.Struct, frozen=True):
    """A worker has sent rubbish, and what."""

    worker: bytes
    reason: str


def why_bad_costs(cost: tuple[int, ...], nbytes: int, resources: int) -> str:
    """Return why these cannot be the costs and the size of a sample, "" if they can.

    >>> why_bad_costs((3, 5), 100, resources=2), why_bad_costs((3,), 100, resources=2)
    ('', '1 costs, 2 are needed')
    """
    if len(cost) != resources:
        return f"{len(cost)} costs, {resources} are needed"
    if not 0 <= nbytes <= MAX_PAYLOAD_BYTES:
        return f"a payload of {nbytes} bytes"
    return ""


def why_not_readable(payload: Payload, check_layout: LayoutCheck | None) -> str:
    """Return why no rank could read a payload, "" if they can; `check_layout`: see EpochRun.

    Of one that is pulled the ranks compare it with its header, once they have it.
    """
    if not payload.serial:
        return "" if check_layout is None else check_layout(payload.header, payload.frame)
    if payload.server is None:
        return "a payload that it keeps, where no rank can pull it"
    if not 0 < payload.nbytes <= MAX_PULLED_BYTES:
        return f"a payload of {payload.nbytes} bytes, to be pulled"
    return ""


def describe(sample: Sample, result: Probed | DecodedItem, reason: str) -> str:
    """Return a reason with the sample that it is about."""
    return f"it answers sample {sample.key or result.key!r:.{SHOWN}} with rubbish: {reason}"
