"""The reasons to refuse a rank or a worker, ranks that cannot run together, and launches.

Each function returns the reason as a text, or "" if there is none.

A trainer is restarted as a whole (torch elastic), but its processes come one by one, and the end of
those before may be noticed late or never. A launch is a number that rises when a process is seen to
replace another one, or to be gone from its run; processes that come later belong to a later launch.
"""

from collections.abc import Callable, Collection
from typing import Any

from ...planning.problem.config import PlanConfig
from ...protocol.job_spec import JobSpec, difference, from_json, to_json
from ...protocol.messages import RankHello, StartRun, WorkerReady
from ...protocol.records import VERSION
from .records import RankPeer

# A position in the order takes 8 bytes, kept for the epoch and once more while it is shuffled.
MAX_SAMPLES = 1 << 32
# Characters of a job that a refusal quotes.
MAX_QUOTED = 1000
# Characters of a version that a refusal quotes.
MAX_VERSION = 40


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
    job: JobSpec | None, hello: RankHello, plan_with: Callable[[PlanConfig], Any]
) -> str:
    """Return why a rank cannot take part in the current job (if there is one)."""
    if reason := why_other_version(hello.version):
        return reason
    try:
        theirs = from_json(hello.job)
        plan_with(theirs.plan)  # a plan that cannot be made is refused here, not at its step
    except ValueError as error:
        return f"{error!s:.{MAX_QUOTED}}"
    if not hello.ranks or min(hello.ranks) < 0 or max(hello.ranks) >= theirs.ranks:
        return f"ranks {hello.ranks!s:.80} are not among the job's {theirs.ranks}"
    if job is not None and job != theirs:
        differ = difference(to_json(job), hello.job)
        return f"this balancer serves another job: {differ:.{MAX_QUOTED}}"
    return ""


def why_worker_refused(count: int, fingerprint: str, ready: WorkerReady) -> str:
    """Return why a worker cannot join those that are ready (if there are any)."""
    if not 0 <= ready.count <= MAX_SAMPLES:
        return f"this worker has {ready.count} samples: up to {MAX_SAMPLES} can be ordered"
    if not fingerprint or (ready.count, ready.fingerprint) == (count, fingerprint):
        return ""
    return (
        f"this worker's data or libraries differ from the others' (fingerprint "
        f"{ready.fingerprint:.80}, {ready.count} samples; the others have {fingerprint}, {count}): "
        "install the same versions, and give it the same data"
    )


def why_apart(starts: Collection[tuple[RankPeer, StartRun]]) -> str:
    """Return why ranks cannot run together, "" if they start the same run at one position.

    >>> why_apart([])
    ''
    """
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


# Trainer processes whose launch is remembered after they have gone.
MAX_REMEMBERED = 1 << 14


class LaunchHistory:
    """The current launch, that of each process seen, and the processes that were replaced."""

    def __init__(self) -> None:
        self.current = 0
        self._launch_of: dict[bytes, int] = {}
        self._replaced: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._launch_of) + len(self._replaced)

    def of(self, peer: bytes) -> int:
        """Return a process' launch; one never seen belongs to the current launch."""
        return self._launch_of.get(peer, self.current)

    def admit(self, peer: bytes) -> int:
        """Record a process, of the current launch unless it was seen before; return its launch."""
        return _remember(self._launch_of, peer, self.current)

    def end(self, launch: int) -> None:
        """Record that a process of a launch has gone or was replaced: that launch is over."""
        self.current = max(self.current, launch + 1)

    def replace(self, peer: bytes, launch: int) -> None:
        """Record that another process now plays a rank of this one."""
        _remember(self._replaced, peer, launch)

    def is_replaced(self, peer: bytes) -> bool:
        """Return whether another process now plays a rank of this one."""
        return peer in self._replaced


def _remember(table: dict[bytes, int], peer: bytes, fact: int) -> int:
    """Record a fact about a peer unless there is one; the earliest peers are forgotten.

    >>> known = {b"a": 1}
    >>> _remember(known, b"a", 2), _remember(known, b"b", 2), known
    (1, 2, {b'a': 1, b'b': 2})
    """
    known = table.setdefault(peer, fact)
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]
    return known
