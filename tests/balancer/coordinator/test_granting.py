"""The size of leases follows how long a worker decodes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.records import WorkerStats
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import RankHello, StartRun, WorkerHello, WorkerReady
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import (
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)

PLAN = PlanConfig(
    ranks=1, samples_per_step=256, accumulate=2, resources=("tokens",), budgets=(None,),
    grouping="fixed", partition="greedy", batch_size=128, seed=1,
)  # fmt: skip
SMALL_STEPS = replace(PLAN, samples_per_step=16, accumulate=1, batch_size=16)
COUNT = 512


def lease_sizes(
    each_us: int, plan: PlanConfig = PLAN, payload: bytes = b"p"
) -> dict[str, list[int]]:
    """Return the sizes of leases by kind, where a sample takes a worker so many microseconds.

    Less than nothing: it does not say. Each sample has this payload; the rank asks for its first
    batch, and takes none.
    """
    job = JobSpec(plan=plan, buffer_bytes=1 << 30)
    coordinator, now, waiting = Coordinator(job), 0.0, list[Lease]()
    sizes: dict[str, list[int]] = {"probe": [], "decode": []}

    def tell(message: object, payloads: Sequence[bytes] = ()) -> None:
        peer = b"r" if isinstance(message, (RankHello, StartRun, RequestBatch)) else b"w"
        for effect in coordinator.handle(peer, message, payloads, now):  # type: ignore[arg-type]
            if isinstance(effect.message, Lease):
                waiting.append(effect.message)

    for message in (
        WorkerHello("w", 0, "h", 0), WorkerReady(COUNT, "f", 0),
        RankHello((0,), to_json(job)), StartRun(0, 0, EpochPosition(0, 0, 0, 0, "")),
        RequestBatch(0, 0, 0, 0),
    ):  # fmt: skip
        tell(message)
    while waiting:
        lease = waiting.pop(0)
        sizes[lease.kind].append(len(lease.refs))
        if lease.kind == "probe":
            found = (Probed(r.ordinal, f"k{r.index}", (1,), 9) for r in lease.refs)
            tell(ProbeDone(lease.lease, tuple(found), each_us))
        else:
            items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"", 0, 0) for r in lease.refs)
            tell(DecodeDone(lease.lease, items, usual_us=each_us), [payload] * len(items))
    return sizes


@pytest.mark.parametrize(
    ("each_us", "probed", "decoded"),
    [(-1, 16, 4), (16_000, 16, 4), (1500, 16, 6), (250, 40, 40), (20, 128, 128), (0, 128, 128)],
)
def test_quick_samples_are_leased_together(each_us: int, probed: int, decoded: int) -> None:
    sizes = lease_sizes(each_us)
    # Of the first two of a kind nothing is known yet.
    assert (sizes["probe"][:2], sizes["decode"][:2]) == ([16] * 2, [4] * 2)
    assert (max(sizes["probe"]), max(sizes["decode"])) == (probed, decoded)


def test_quick_samples_of_several_steps_are_leased_together() -> None:
    sizes = lease_sizes(20, SMALL_STEPS)
    # Three steps are planned ahead.
    assert max(sizes["decode"]) > 16


def test_slow_samples_are_leased_by_steps() -> None:
    sizes = lease_sizes(16_000, SMALL_STEPS)
    assert (max(sizes["probe"]), max(sizes["decode"])) == (16, 4)


def test_large_samples_are_decoded_few_steps_ahead() -> None:
    sizes = lease_sizes(20, SMALL_STEPS, payload=bytes(1 << 20))
    assert sum(sizes["decode"]) == 3 * 16


def test_how_long_a_sample_takes_follows_the_last_ones() -> None:
    stats = WorkerStats(since=0.0)
    stats.note_time("decode", -1)
    assert stats.ms_each == {}
    stats.note_time("decode", 10_000)
    assert stats.ms_each == {"decode": 10.0}
    stats.note_time("decode", 2_000)
    assert stats.ms_each == {"decode": 6.0}
