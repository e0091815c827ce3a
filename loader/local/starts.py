"""What a local loop does when it starts: ranks meet and agree, and the user is told its price."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.run.ahead import LoopCosts
from ...workers.sources.data_identity import KnownData
from ...workers.sources.fingerprint import digest_arrays
from ...workers.sources.interface import Source, source_name
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group
from ..step.waiting import tell

if TYPE_CHECKING:
    from ..peers.exchange import Peers

logger = logging.getLogger(__name__)
# Without a timeout ranks wait for each other as long as torch's process groups do.
MEET_S = 1800.0
# Other ranks are given up after so long if they have ended, or closed their loaders.
LOST_S = 3.0


def meet_ranks(
    job: JobSpec, source: Source, dataset: Any, place: Place, name: str, costs: LoopCosts,
    timeout_s: float | None,
) -> "tuple[Peers | None, bool]":  # fmt: skip
    """Meet the other ranks; return them, and whether they have to tell each other costs.

    dataset: what `source` reads. All ranks must bring the same configuration, data and, where all
    of them know them, costs. What differs in samples without keys shows when some are loaded: see
    `describe_sample_mismatch` of balancer/run/run.py.

    None where no rank has to be met: all costs are known, and nothing else shows on loading. Raises
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
    from ..peers.joining import meet  # here: a loop on its own needs it not

    facts = {
        "configuration": to_json(job),
        "data": f"{source_name(source)}, {len(source)} samples",
        "order or content of the data": KnownData(dataset, len(source), source.key).rank_identity,
    }
    peers = meet(place, name, facts, timeout_s or MEET_S, digest_costs(costs))
    digests = peers.greetings
    if all(digests) and len({*digests}) > 1:
        peer = next(peer for peer in peers.members if digests[peer.rank] != digests[0])
        raise LoaderError(
            f"the costs of rank {peer.rank} ({peer}) are others than those of rank 0, so that they "
            "would plan other batches: give all the same costs"
        )
    return peers, not all(digests)


def digest_costs(costs: LoopCosts) -> str:
    """Return a hash of all costs, "" where some are not known."""
    if not costs.are_all_known:
        return ""
    return digest_arrays(repr(costs.resources).encode(), costs.rows(np.arange(len(costs))))


def log_way(workers: int, costs: LoopCosts, by_loading: bool) -> None:
    """Log which way a loader goes, and what its costs take.

    by_loading: what a sample costs shows when it is loaded.
    """
    loading = f"{workers} worker process(es) of each rank" if workers else "each rank's own process"
    text = f"balanced without a balancer process: {loading} load and collate what the plan says"
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
