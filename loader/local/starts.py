"""Compares where the ranks of a run begin: apart they would plan each other's steps."""

import json
from collections.abc import Sequence

from msgspec import structs

from ...workers.sources.fingerprint import digest
from ..resume.balanced_position import RunStart

# The key under which each rank says where it begins.
KEY = "start"


def pack_start(start: RunStart) -> bytes:
    """Return what has to be the same on all ranks."""
    costs = digest([start.costs]) if start.costs else ""
    return json.dumps([start.epoch, structs.astuple(start.at), costs]).encode()


def why_apart(packed: Sequence[bytes]) -> str:
    """Return why ranks cannot run together, "" if they can; `packed` is what each has said.

    >>> from ...balancer.protocol.messages import EpochPosition
    >>> starts = [RunStart(epoch, EpochPosition(0, 0, 0, 0)) for epoch in (1, 1, 2)]
    >>> why_apart([pack_start(each) for each in starts[:2]])
    ''
    >>> print(why_apart([pack_start(each) for each in starts]))
    the ranks are not at the same position: rank 0 starts at epoch 1, step 0; rank 2 starts at \
epoch 2, step 0: resume all of them from one ledger
    """
    first = json.loads(packed[0])
    for rank, each in enumerate(packed):
        other = json.loads(each)
        if other[:2] != first[:2]:
            listed = "; ".join(
                f"rank {number} starts at epoch {epoch}, step {at[2]}"
                for number, (epoch, at, _) in ((0, first), (rank, other))
            )
            return (
                f"the ranks are not at the same position: {listed}: resume all of them from one "
                "ledger"
            )
        if other != first:
            return (
                f"the ranks go by different costs of their pipeline: rank {rank} by others than "
                "rank 0: call follow_costs() on all of them or on none, with one pipeline"
            )
    return ""
