"""The size of leases follows how long a worker decodes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from counterpoise.balancer.coordinator.effects import Send
from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.worker_stats import WorkerStats
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Batch,
    DecodedItem,
    DecodeDone,
    EpochPosition,
    Lease,
    Message,
    Probed,
    ProbeDone,
    RankHello,
    RequestBatch,
    StartRun,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
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
        RankHello((0,), to_json(job)), StartRun(0, 0, EpochPosition(0, 0, 0, 0)),
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
            items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"") for r in lease.refs)
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
    assert (max(sizes["probe"]), max(sizes["decode"])) == (128, 128)
    # No rank has taken any, and all are small: half of all, and not fewer, are planned ahead.
    assert 512 >= sum(sizes["decode"]) >= 256


def test_slow_samples_are_leased_by_steps() -> None:
    sizes = lease_sizes(16_000, SMALL_STEPS)
    assert (max(sizes["probe"]), max(sizes["decode"])) == (16, 4)


def test_large_samples_are_decoded_few_steps_ahead() -> None:
    sizes = lease_sizes(20, SMALL_STEPS, payload=bytes(1 << 20))
    assert sum(sizes["decode"]) == 3 * 16


class Epochs:
    """A coordinator with one rank and two workers, whose samples all cost the same.

    Workers decode one in `each_us` microseconds.
    """

    def __init__(self, each_us: int = 200) -> None:
        self.each_us, self.now = each_us, 0.0
        self.job = JobSpec(plan=replace(PLAN, samples_per_step=32, accumulate=1, batch_size=32))
        self.coordinator, self.sent = Coordinator(self.job), list[Send]()
        self.join(b"w0", b"w1")
        self.tell(b"r", RankHello((0,), to_json(self.job)))

    def join(self, *peers: bytes) -> None:
        for peer in peers:
            self.tell(peer, WorkerHello(peer.decode(), 0, "h", 0))
            self.tell(peer, WorkerReady(COUNT, "f", 0, (1,)))

    def tell(self, peer: bytes, message: Message, payloads: Sequence[bytes] = ()) -> None:
        self.sent += self.coordinator.handle(peer, message, payloads, self.now)

    def take_leases(self) -> list[tuple[bytes, Lease]]:
        """Return the leases that were sent since the last call."""
        sent, self.sent = self.sent, []
        return [(each.peer, each.message) for each in sent if isinstance(each.message, Lease)]

    def start(self, run: int) -> list[tuple[bytes, Lease]]:
        """Start a run; return the leases that this brings by itself."""
        self.take_leases()
        self.tell(b"r", StartRun(run, run, EpochPosition(0, 0, 0, 0)))
        return self.take_leases()

    def decode(self, leases: list[tuple[bytes, Lease]]) -> None:
        """Have workers decode what they are leased."""
        for peer, lease in leases:
            items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"") for r in lease.refs)
            self.tell(
                peer, DecodeDone(lease.lease, items, usual_us=self.each_us), [b"p"] * len(items)
            )


def ordinals(leases: list[tuple[bytes, Lease]]) -> list[int]:
    return sorted(ref.ordinal for _, lease in leases for ref in lease.refs)


def test_all_workers_decode_the_first_microbatch_and_nothing_beside_it() -> None:
    epochs = Epochs()
    epochs.decode(epochs.start(0))
    leases = epochs.start(1)
    assert [(peer, len(lease.refs)) for peer, lease in leases] == [(b"w0", 16), (b"w1", 16)]
    assert ordinals(leases) == list(range(32))
    # The next steps are planned with the next message.
    epochs.tell(b"r", RequestBatch(1, 0, 0, 0))
    assert min(ordinals(epochs.take_leases())) == 32
    epochs.decode(leases)
    assert [each.message.step for each in epochs.sent if isinstance(each.message, Batch)] == [0]


def test_a_first_microbatch_that_is_decoded_before_another_worker_wakes_is_not_shared_out() -> None:
    epochs = Epochs(each_us=20)
    epochs.decode(epochs.start(0))
    leases = epochs.start(1)
    assert [len(lease.refs) for _, lease in leases] == [32]
    # The other is not woken before it is there.
    epochs.tell(b"r", RequestBatch(1, 0, 0, 0))
    assert not epochs.take_leases()
    epochs.decode(leases)
    assert [each.message.step for each in epochs.sent if isinstance(each.message, Batch)] == [0]
    epochs.tell(b"r", RequestBatch(1, 0, 1, 0))
    assert {peer for peer, _ in epochs.take_leases()} == {b"w0", b"w1"}


def test_others_do_not_wait_for_a_first_microbatch_that_takes_longer_than_was_expected() -> None:
    epochs = Epochs(each_us=20)
    epochs.decode(epochs.start(0))
    leases = epochs.start(1)
    epochs.now += 0.003
    epochs.tell(b"r", RequestBatch(1, 0, 0, 0))
    assert leases[0][0] not in {peer for peer, _ in epochs.take_leases()[:1]}


def test_what_is_planned_next_waits_for_a_message_after_the_first_microbatch() -> None:
    epochs = Epochs(each_us=20)
    epochs.decode(epochs.start(0))
    leases = epochs.start(1)
    epochs.tell(b"r", RequestBatch(1, 0, 0, 0))
    run = epochs.coordinator.state.run
    assert run is not None
    planned = len(run.delivery.steps)
    epochs.decode(leases)
    assert len(run.delivery.steps) == planned
    epochs.tell(b"r", RequestBatch(1, 0, 1, 0))
    assert len(run.delivery.steps) > planned


def test_new_workers_are_taken_to_be_as_quick_with_the_first_microbatch_as_those_before() -> None:
    epochs = Epochs()
    leases = epochs.start(0)
    assert {len(lease.refs) for _, lease in leases} == {4}
    epochs.decode(leases)
    epochs.tell(b"r", WorkersEnded(("w0", "w1")))
    epochs.join(b"w2", b"w3")
    assert [len(lease.refs) for _, lease in epochs.start(1)] == [16, 16]


def test_how_long_a_sample_takes_follows_the_last_ones() -> None:
    stats = WorkerStats(since=0.0)
    stats.note_decoding(-1)
    assert stats.decode_ms_each is None
    stats.note_decoding(10_000)
    assert stats.decode_ms_each == 10.0
    stats.note_decoding(2_000)
    assert stats.decode_ms_each == 6.0
    assert stats.probe_ms_each is None
