"""The size of leases follows how long a worker decodes."""

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.worker_stats import WorkerStats
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    DecodedItem,
    DecodeDone,
    EpochPosition,
    Lease,
    Probed,
    ProbeDone,
    RankHello,
    StartRun,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)

PLAN = PlanConfig(
    ranks=1, samples_per_step=64, accumulate=2, resources=("tokens",), budgets=(None,),
    grouping="fixed", partition="greedy", batch_size=32, seed=1,
)  # fmt: skip
COUNT = 256


def lease_sizes(total_ms: float) -> list[int]:
    """Return the sizes of leases to decode, where a sample takes a worker so many milliseconds."""
    job = JobSpec(plan=PLAN)
    coordinator, now, done, waiting, sizes = Coordinator(job), 0.0, 0, list[Lease](), list[int]()

    def tell(message: object) -> None:
        peer = b"r" if isinstance(message, (RankHello, StartRun)) else b"w"
        peer = b"heartbeat" if isinstance(message, WorkerHeartbeat) else peer
        for effect in coordinator.handle(peer, message, (), now):  # type: ignore[arg-type]
            if isinstance(effect.message, Lease):
                waiting.append(effect.message)

    for message in (
        WorkerHello("w", 0, "h", 0), WorkerReady(COUNT, "f", 0),
        RankHello((0,), to_json(job)), StartRun(0, 0, EpochPosition(0, 0, 0, 0)),
        WorkerHeartbeat("w", 0),
    ):  # fmt: skip
        tell(message)
    while waiting:
        lease = waiting.pop(0)
        if lease.kind == "probe":
            found = (Probed(r.ordinal, f"k{r.index}", (1,), 9) for r in lease.refs)
            tell(ProbeDone(lease.lease, tuple(found)))
            continue
        sizes.append(len(lease.refs))
        done += len(lease.refs)
        tell(WorkerHeartbeat("w", 0, decode_ms=round(done * total_ms)))
        items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"") for r in lease.refs)
        for effect in coordinator.handle(b"w", DecodeDone(lease.lease, items), [b"p"] * len(items)):
            if isinstance(effect.message, Lease):
                waiting.append(effect.message)
    return sizes


@pytest.mark.parametrize(("each_ms", "most"), [(0.0, 4), (16.0, 4), (1.5, 6), (0.25, 16)])
def test_quickly_decoded_samples_are_leased_together(each_ms: float, most: int) -> None:
    sizes = lease_sizes(each_ms)
    assert sizes[:4] == [4] * 4  # nothing is known yet
    assert max(sizes) == most


def test_how_long_a_sample_takes_is_known_after_a_few() -> None:
    stats = WorkerStats(since=0.0)
    stats.record_work(0.0, 0, 1000)  # for a balancer before
    stats.add(1.0, decoded=15)
    stats.record_work(1.0, 0, 1030)
    assert stats.decode_ms_each is None
    stats.add(2.0, decoded=15)
    assert stats.decode_ms_each == 1.0
