"""The reasons to refuse a rank or a worker, and ranks that cannot run together.

Each function returns the reason as a text, or "" if there is none.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from ...planning.problem.config import PlanConfig
from ...protocol.job_spec import JobSpec, difference, from_json, to_json
from ...protocol.messages import RankHello, WorkerReady
from ...protocol.records import VERSION
from .records import RankPeer

# A position in the order takes 8 bytes, kept for the epoch and once more while it is shuffled.
MAX_SAMPLES = 1 << 32
# Characters of a job that a refusal quotes.
MAX_QUOTED = 1000
# Characters of a version that a refusal quotes.
MAX_VERSION = 40


class DataFacts(msgspec.Struct, frozen=True):
    """What the first worker said of the data set: all others must have the same.

    count: its samples. fingerprint: of its reader; "" while nobody has said anything. said_by: that
    worker's name.
    """

    count: int = 0
    fingerprint: str = ""
    said_by: str = ""

    def agree_with(self, other: "DataFacts") -> bool:
        """Return whether two workers said the same."""
        return (self.count, self.fingerprint) == (other.count, other.fingerprint)


def why_other_version(version: str) -> str:
    """Return why a peer of a version of counterpoise cannot take part.

    The balancer's decides: who comes first must not.

    >>> why_other_version(VERSION)
    ''
    """
    if version == VERSION:
        return ""
    return (
        f"this peer has counterpoise {version:.{MAX_VERSION}}, and the balancer {VERSION}, which "
        f"decides: install {VERSION} here, or another version in the balancer and everywhere"
    )


def why_rank_refused(
    job: JobSpec | None,
    hello: RankHello,
    plan_with: Callable[[PlanConfig], Any],
    others: Iterable[RankPeer] = (),
) -> str:
    """Return why a rank cannot take part in the current job (if there is one) of others."""
    if reason := why_other_version(hello.version):
        return reason
    try:
        theirs = from_json(hello.job)
        plan_with(theirs.plan)  # a plan that cannot be made is refused here, not at its step
    except ValueError as error:
        return f"{error!s:.{MAX_QUOTED}}"
    if not hello.ranks or min(hello.ranks) < 0 or max(hello.ranks) >= theirs.plan.ranks:
        return f"ranks {hello.ranks!s:.80} are not among the job's {theirs.plan.ranks}"
    if job is not None and job != theirs:
        differ = difference(to_json(job), hello.job)
        whose = next((f", that of {o.hello.name:.80}" for o in others if o.hello.name), "")
        return f"this balancer serves another job{whose}: {differ:.{MAX_QUOTED}}"
    return ""


def why_seat_taken(holder: RankPeer, hello: RankHello) -> str:
    """Return why a newcomer is refused: another process, which is here, plays a rank of it."""
    rank = min({*holder.hello.ranks} & {*hello.ranks})
    first, second = (each.name or "a process without a name" for each in (holder.hello, hello))
    return (
        f"{first:.80} plays rank {rank} of this job already, and goes on; the newcomer is "
        f"{second:.80}: end the first one, or give the second a job of its own "
        "(DataLoader(job=NAME)); if both are to get the same samples, give topology="
    )


def why_worker_refused(facts: DataFacts, ready: WorkerReady) -> str:
    """Return why a worker cannot join those that are ready (if there are any)."""
    if not 0 <= ready.count <= MAX_SAMPLES:
        return f"this worker has {ready.count} samples: up to {MAX_SAMPLES} can be ordered"
    if not facts.fingerprint or facts.agree_with(DataFacts(ready.count, ready.fingerprint)):
        return ""
    return (
        f"this worker's data or libraries differ from the others' (fingerprint "
        f"{ready.fingerprint:.80}, {ready.count} samples; the others have {facts.fingerprint}, "
        f"{facts.count}, as worker {facts.said_by:.80} said, the first of them): install the same "
        "versions, and give it the same data"
    )


def why_not_gone_on_in(needed: Collection[int], count: int) -> str:
    """Return why ranks cannot go on in a worker's data, "" if they can.

    needed: the numbers of samples that they go by, none where any will do.
    """
    if not needed or count in needed:
        return ""
    return (
        f"this worker has {count} samples, and the trainer goes on in data of {min(needed)} (those "
        "of its ledger, or of which it has had a part): give it the data of then"
    )


def why_apart(ranks: Iterable[RankPeer]) -> str:
    """Return why ranks cannot run together, "" if they start the same run at one position.

    >>> why_apart([])
    ''
    """
    starts = [(rank, rank.started) for rank in ranks if rank.started is not None]
    positions = {
        f"ranks {rank.hello.ranks} start at epoch {start.epoch}, step {start.at.step}": (
            start.epoch,
            start.at,
        )
        for rank, start in starts
    }
    listed = "; ".join(sorted(positions))
    if len(set(positions.values())) > 1:
        advice = "resume all of them from one ledger"
        return f"the ranks are not at the same position: {listed}: {advice}"
    if len({start.costs for _, start in starts}) > 1:
        return (
            f"the ranks go by different costs of their pipeline: {listed}: call follow_costs() on "
            "all of them or on none, with one pipeline"
        )
    return ""
