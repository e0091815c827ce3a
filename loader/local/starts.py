"""What a local loop does when it starts: ranks meet and agree, and the user is told its price."""

import json
import logging
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...workers.sources.data_identity import KnownData
from ...workers.sources.fingerprint import digest
from ...workers.sources.interface import Source, source_name
from ..resume.balanced_position import RunStart
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group
from ..step.waiting import tell
from .costs import LoopCosts

if TYPE_CHECKING:
    from ..peers.exchange import Peers

logger = logging.getLogger(__name__)
# Without a timeout ranks wait for each other as long as torch's process groups do.
MEET_S = 1800.0
# Other ranks are given up after so long if they have ended, or closed their loaders.
LOST_S = 3.0
# After so long it is told if the loop has waited this part of the time for workers.
TELL_AFTER_S, MOST_WAITING = 10.0, 0.3

# The keys under which each rank says where it begins, and what it has seen of some samples: so
# many, of which an error names some.
KEY, LOOKS = "start", "looks"
LOOKED_AT, NAMED = 16, 4
_KNOWN = "known costs"


def meet_ranks(
    job: JobSpec,
    source: Source,
    dataset: Any,
    place: Place,
    name: str,
    costs: LoopCosts,
    timeout_s: float | None,
) -> "tuple[Peers | None, bool]":
    """Meet the other ranks; return them, and whether they have to tell each other costs.

    dataset: what `source` reads. All ranks must bring the same configuration, data and, where all
    of them know them, costs. What differs in samples without keys shows when some are loaded: see
    `why_others`.

    None where nobody has to be met: all costs are known, and nothing else shows on loading. Raises
    ValueError where they cannot find each other, LoaderError where they disagree.
    """
    says = job.on_error == "skip" or job.counts_batches
    if not has_process_group():
        if costs.are_all_known and not says:
            return None, False
        why = "what they find of samples" if costs.are_all_known else "what samples cost"
        raise ValueError(
            "several ranks without torch.distributed cannot find each other, and tell each other "
            f"{why}: call init_process_group(), give a table of costs and on_error='raise', or "
            "start `counterpoise balancer` and give balancer='tcp://HOST:PORT' to all"
        )
    from ..peers.joining import meet  # here: a loop on its own meets nobody

    facts = {
        "configuration": to_json(job),
        "data": f"{source_name(source)}, {len(source)} samples",
        "order or content of the data": KnownData(dataset, len(source), source.key).rank_identity,
    }
    longest_s = timeout_s or MEET_S
    peers = meet(place, name, facts, longest_s)
    peers.post(_KNOWN, costs.digest.encode())
    since = time.monotonic()
    while (digests := peers.gather(_KNOWN)) is None:
        waited = time.monotonic() - since
        if waited > longest_s or (waited > LOST_S and peers.why_lost(_KNOWN)):
            raise LoaderError(
                f"what all ranks know of costs not within {waited:.0f} s: "
                f"{peers.why_missing(_KNOWN)}"
            )
        time.sleep(peers.pause_s())
    if all(digests) and len({*digests}) > 1:
        other = next(rank for rank, each in enumerate(digests) if each != digests[0])
        raise LoaderError(
            f"the costs of rank {other} ({peers.members[other]}) are others than those of rank 0, "
            "so that they would plan other batches: give all the same costs"
        )
    return peers, not all(digests)


def tell_way(workers: int, costs: LoopCosts, by_loading: bool) -> None:
    """Log which way a loader goes, and what its costs take.

    by_loading: what a sample costs shows when it is loaded.
    """
    who = f"{workers} worker process(es) of each rank" if workers else "each rank's own process"
    text = f"balanced without a balancer process: {who} load and collate what the plan says"
    if costs.are_all_known:
        logger.info("%s; all costs are known", text)
    elif not by_loading:
        logger.info("%s; costs that are not known are measured ahead of need", text)
    else:
        tell(
            logger,
            f"{text}; what a sample costs shows when it is loaded: in this epoch each is loaded "
            "twice, once to measure it, half of the workers' time. A table of costs (cost={...}), "
            "a column of lengths or probe(index) avoids it",
        )


class BottleneckLine:
    """Tells, once, that workers which load each sample twice are what the loop waits for."""

    def __init__(self) -> None:
        self._waited_s, self._begun_at, self._has_told = 0.0, time.monotonic(), False

    def waited(self, seconds: float) -> None:
        """Count a wait for a microbatch."""
        self._waited_s += seconds
        elapsed = time.monotonic() - self._begun_at
        is_late = elapsed > TELL_AFTER_S and self._waited_s > MOST_WAITING * elapsed
        if self._has_told or not is_late:
            return
        self._has_told = True
        tell(
            logger,
            f"the workers are the bottleneck: of {elapsed:.0f} s so far the loop has waited "
            f"{self._waited_s:.0f} s for them, and in this epoch they load each sample twice, to "
            "measure it; more workers (num_workers=), a table of costs, or `counterpoise "
            "balancer`, whose workers decode each sample once, would help",
        )


def pack_start(start: RunStart) -> bytes:
    """Return what has to be the same on all ranks."""
    costs = digest([start.costs]) if start.costs else ""
    return json.dumps([start.epoch, structs.astuple(start.at), costs]).encode()


def why_apart(packed: Sequence[bytes]) -> str:
    """Return why ranks cannot run together, "" if they can; `packed` is what each has said.

    >>> from ...balancer.protocol.parts import EpochPosition
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
