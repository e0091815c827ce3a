"""Finds results of workers that cannot be right, and the workers to blame for them.

A result is *rubbish* if no worker of this version could send it: of a sample that is not on its
lease, with another number of costs, with a payload that is not what its header says. The sample is
leased again. Where workers name one sample differently, one of them is wrong, and nobody knows
which: it is decoded again until two workers agree, and the others are blamed. Who is blamed a few
times is turned away by the handlers.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from ...protocol.parts import DecodedItem, Probed
from ..delivery.sample import Sample
from ..delivery.shared_payloads import SharedPayload

# Returns why a payload cannot be read with its header (workers/codec/sample_layout.py), or "".
LayoutCheck = Callable[[bytes, object], str]
# A payload cannot be larger than the largest frame; that of another host is smaller.
MAX_PAYLOAD_BYTES = 8 << 30
MAX_PULLED_BYTES = 1 << 30
# Results with contradicting names after which a sample is given up.
MAX_CONTRADICTIONS = 5
SHOWN = 80


class Blame(msgspec.Struct, frozen=True):
    """A worker has sent rubbish, and what."""

    worker: bytes
    reason: str


class NameVerdict(msgspec.Struct, frozen=True):
    """The verdict on a sample's name: the right one, empty while that is open, and the blamed."""

    name: str
    blamed: tuple[Blame, ...] = ()


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


def why_not_pulled(payload: SharedPayload) -> str:
    """Return why no rank could pull a payload that was announced, "" if they can.

    What its header says of it the ranks compare, once they have it.
    """
    run = payload.run
    if run.server is None:
        return "a payload in its own memory, which no rank can reach"
    if run.payloads > 1 or payload.nbytes != run.handle.nbytes:
        return "a run of several payloads, to be pulled"
    if not 0 < payload.nbytes <= MAX_PULLED_BYTES:
        return f"a payload of {payload.nbytes} bytes, to be pulled"
    return ""


def describe(sample: Sample, result: Probed | DecodedItem, reason: str) -> str:
    """Return a reason with the sample that it is about."""
    return f"it answers sample {sample.key or result.key!r:.{SHOWN}} with rubbish: {reason}"


def judge_name(sample: Sample, worker: bytes, name: str) -> NameVerdict:
    """Return which name of a sample is right, now that a worker has said this one."""
    claims = sample.claims or {}
    if name == sample.key:
        return NameVerdict(name, _contradicting(claims, name))
    sample.claims = claims
    claims.setdefault(sample.named_by, sample.key)
    before = claims.get(worker, name)
    claims[worker] = name
    sample.contradictions += 1
    if before != name:
        reason = f"it calls one sample {before!r:.{SHOWN}} and {name!r:.{SHOWN}}"
        return NameVerdict("", (Blame(worker, reason),))
    (most, times), *_ = Counter(claims.values()).most_common(1)
    return NameVerdict(most, _contradicting(claims, most)) if times > 1 else NameVerdict("")


def _contradicting(claims: dict[bytes, str], name: str) -> tuple[Blame, ...]:
    """Return the workers that gave a sample another name than the right one."""
    return tuple(
        Blame(worker, f"it calls a sample {said!r:.{SHOWN}} that others call {name!r:.{SHOWN}}")
        for worker, said in claims.items()
        if said != name
    )
