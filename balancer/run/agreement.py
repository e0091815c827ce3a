"""What ranks tell each other when a run begins: where it does, and what they see of samples."""

import json
import platform
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from .arrivals import RunStart

# The keys under which each rank says where it begins, and what it has seen of some samples: so
# many, of which an error names some.
KEY, LOOKS = "start", "looks"
LOOKED_AT, NAMED = 16, 4


def pack_start(start: RunStart) -> bytes:
    """Return what has to be the same on all ranks."""
    import hashlib  # here: see PlanConfig.digest

    costs = hashlib.sha256(start.costs.encode()).hexdigest() if start.costs else ""
    return json.dumps([start.epoch, structs.astuple(start.at), costs]).encode()


def why_apart(packed: Sequence[bytes]) -> str:
    """Return why ranks cannot run together, "" if they can; `packed` is what each has said.

    >>> from ..protocol.parts import EpochPosition
    >>> starts = [RunStart(epoch, EpochPosition(0, 0, 0, 0, "")) for epoch in (1, 1, 2)]
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


def pack_looks(marks: Any) -> bytes:
    """Return this rank's host, and the hashes of samples; none if a worker has died of them."""
    return json.dumps([platform.node(), marks if isinstance(marks, list | tuple) else ()]).encode()


def why_others(packed: Sequence[bytes], indexes: Sequence[int]) -> str:
    """Return which rank has other samples at some indexes, "" for none; `packed`: what each saw.

    Hosts may have other decoders: there only what these cannot change is compared.

    >>> why_others([b'["a", [["1", "2"]]]', b'["b", [["1", "3"]]]'], [7])
    ''
    >>> why_others([b'["a", [["1", "2"]]]', b'["a", [["1", "3"]]]'], [7])[:60]
    'of 1 samples that all ranks have loaded rank 1 has others th'
    """
    seen: list[tuple[str, list[list[str]]]] = [json.loads(each) for each in packed]
    hosts = [host for host, _ in seen]
    for rank, (host, marks) in enumerate(seen):
        for part, other in ((0, 0), (1, hosts.index(host))):
            differ = [
                index
                for index, here, there in zip(indexes, marks, seen[other][1], strict=False)
                if here[part] and there[part] and here[part] != there[part]
            ]
            if differ:
                named = ", ".join(map(str, differ[:NAMED]))
                return (
                    f"of {len(marks)} samples that all ranks have loaded rank {rank} has others "
                    f"than rank {other}, or costs them otherwise: at {named}"
                    f"{' and more' * (len(differ) > NAMED)}: give all ranks the same data in the "
                    "same order (sort what a folder lists), transform and cost function; with "
                    "key= ranks compare names, and load nothing for it"
                )
    return ""
