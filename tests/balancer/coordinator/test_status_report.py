"""What people who look are told: complete, bounded, and without a trace."""

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.records import WorkerStats
from counterpoise.balancer.coordinator.status_report import MAX_NOTES, MAX_TEXT, waiting_reason
from counterpoise.balancer.job.recent_counts import RECENT_S
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Ping,
    RankHello,
    SampleFailed,
    StartRun,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import (
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)
from counterpoise.balancer.protocol.status_messages import (
    LIMIT,
    UNKNOWN_US,
    ClockOffset,
    GetStatus,
    StatusReport,
    bounded,
)
from counterpoise.balancer.transport.wire import MAX_HEADER_BYTES, decode, encode

PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,), "isf", "greedy")
JOB = JobSpec(source={"pattern": "x"}, plan=PLAN, on_error="skip", lease_s=30.0)
START = EpochPosition(0, 0, 0, 0, "")


class Cluster:
    """A coordinator, and the leases that its workers hold."""

    def __init__(self):
        self.coordinator = Coordinator()
        self.now = 0.0
        self.leases = {}
        self.decoded = 0

    def send(self, peer, *messages, after_s=0.0, payload=b"pixels"):
        self.now += after_s
        sent = []
        for message in messages:
            frames = (payload,) if isinstance(message, DecodeDone) else ()
            sent += self.coordinator.handle(peer, message, frames, self.now)
        for effect in sent:
            if isinstance(effect.message, Lease):
                self.leases.setdefault(effect.peer, []).append(effect.message)
        return [effect.message for effect in sent if effect.peer == peer]

    def join(self, name, software="x 1", fingerprint="same", count=20):
        peer = name.encode()
        self.send(peer, WorkerHello(name, 0, "host", 0, software))
        return self.send(peer, WorkerReady(count, fingerprint))

    def train(self):
        for rank in range(2):
            hello = RankHello((rank,), to_json(JOB))
            self.send(b"r%d" % rank, hello, StartRun(0, 0, START), RequestBatch(0, rank, 0, 0))

    def work(self, name, seconds=1.0):
        """Do one lease."""
        peer = name.encode()
        lease = self.leases[peer].pop(0)
        for ref in lease.refs:
            key, self.now = f"k{ref.index}", self.now + seconds
            if lease.kind == "probe":
                self.send(peer, ProbeDone(lease.lease, (Probed(ref.ordinal, key, (5,), 6),)))
            else:
                self.send(
                    peer, DecodeDone(lease.lease, (DecodedItem(ref.ordinal, key, (), b"", 0, 0),))
                )
                self.decoded += 1

    def work_all(self):
        """Do leases until nobody is given any."""
        while any(self.leases.values()):
            self.work(next(peer for peer, leases in self.leases.items() if leases).decode(), 0.5)

    def look(self, after_s=0.0):
        (answer,) = self.send(b"visitor", GetStatus(7), after_s=after_s)
        assert isinstance(answer, StatusReport)
        return answer


@pytest.fixture
def cluster():
    """Two workers and two ranks, none of which has done anything."""
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.send(name.encode(), WorkerHello(name, 0, "host", 0, "x 1"))
    cluster.train()
    for name in ("a", "b"):
        cluster.send(name.encode(), WorkerReady(20, "same"))
    return cluster


def note(overview, name):
    return next(each for each in overview.worker_statuses if each.name == name)


def test_nothing_but_a_number_is_known_at_first():
    seen = Cluster().look()
    assert (seen.number, seen.workers, seen.trainers, seen.epoch) == (7, 0, 0, -1)
    assert seen.waiting == "a worker to connect"


def test_looking_leaves_no_trace(cluster):
    before = dict(cluster.coordinator.peer_states)
    cluster.look()
    assert cluster.coordinator.peer_states == before
    assert cluster.coordinator.dropped == 0


def test_what_workers_have_done_is_counted_with_its_time(cluster):
    cluster.work_all()
    done = [note(cluster.look(), name) for name in ("a", "b")]
    assert sum(each.decoded for each in done) == cluster.decoded > 0
    assert all(each.nbytes == 6 * each.decoded for each in done)
    seen = done[0]
    assert (seen.recent_probed, seen.recent_decoded) == (seen.probed, seen.decoded)
    assert seen.recent_ms == round(1000 * cluster.now)
    later = note(cluster.look(after_s=10 * RECENT_S), "a")
    assert later.decoded == seen.decoded
    assert later.recent_decoded / later.recent_ms < seen.recent_decoded / seen.recent_ms / 5


def test_a_heartbeat_reports_time_at_work_and_the_clock(cluster):
    cluster.coordinator.diagnostics.wall_ahead_s = 1000.0
    cluster.send(
        b"heartbeat.a", WorkerHeartbeat("a", 0, 5000, 6000, cpu_ms=9000)
    )  # worked for another balancer
    beat = WorkerHeartbeat("a", 0, 5700, 6200, 1_001_000_000 - 40_000, cpu_ms=9300)
    cluster.send(b"heartbeat.a", beat, after_s=1.0)
    seen = note(cluster.look(), "a")
    assert (seen.recent_busy_ms, seen.recent_decode_ms, seen.recent_cpu_ms) == (900, 200, 300)
    assert (seen.ahead_us, seen.last_message_ms) == (-40_000, 0)


def test_a_worker_without_heartbeats_comes_first(cluster):
    cluster.send(b"heartbeat.b", WorkerHeartbeat("b", 0), after_s=4.0)
    notes = cluster.look().worker_statuses
    assert [(each.name, each.last_message_ms) for each in notes] == [("a", 4000), ("b", 0)]


def test_what_a_rank_needs_is_said_at_every_stage(cluster):
    first = cluster.look(after_s=3.0).trainer_statuses[0]
    assert (first.missing, first.oldest_request_ms) == ("its step to be planned", 3000)
    cluster.work("a")
    needs = {each.missing for each in cluster.look().trainer_statuses}
    assert needs == {"1 of 1 samples to be decoded"}
    assert not cluster.look().all_decoded
    cluster.work_all()
    assert cluster.look().all_decoded


def test_a_rank_waits_if_it_said_so_lately(cluster):
    assert not any(each.is_waiting for each in cluster.look().trainer_statuses)
    cluster.send(b"r1", Ping(1, 5_000))
    waiting = cluster.look().trainer_statuses[0]
    assert (waiting.ranks, waiting.is_waiting, waiting.ahead_us) == ("1", True, 5_000)
    assert not cluster.look(after_s=5.0).trainer_statuses[0].is_waiting


def test_a_repeated_request_is_as_old_as_the_first(cluster):
    cluster.send(b"r0", RequestBatch(0, 0, 0, 0), after_s=4.0)
    assert {each.oldest_request_ms for each in cluster.look().trainer_statuses} == {4000}


def test_samples_given_up_are_named(cluster):
    lease = cluster.leases[b"a"][0]
    cluster.send(b"a", SampleFailed(lease.lease, lease.refs[0].ordinal, "k", "cut", False))
    seen = cluster.look()
    assert (seen.holes, seen.last_holes[0].key, seen.last_holes[0].reason) == (1, "k", "cut")
    assert note(seen, "a").failed == 1


def test_workers_that_are_lost_are_counted(cluster):
    cluster.send(b"heartbeat.a", WorkerHeartbeat("a", 0), after_s=31.0)
    cluster.coordinator.tick(cluster.now)
    seen = cluster.look(after_s=2.0)
    assert (seen.lost, seen.last_lost, seen.lost_ms) == (1, ("b",), 2000)
    assert note(seen, "a").unresponsive


def test_a_worker_that_is_turned_away_is_remembered_with_the_reason(cluster):
    for _ in range(2):  # it is asked once more before it is refused
        cluster.join("c", fingerprint="other")
    (reason,) = cluster.look().rejected_workers
    assert reason.startswith("c: this worker's data or libraries differ")


def test_the_answer_is_bounded_whatever_the_peers_say(cluster):
    for number in range(2 * MAX_NOTES):
        cluster.join(f"{number}-" + "n" * 5000, software="s" * 5000)
    seen = cluster.look()
    assert (seen.workers, len(seen.worker_statuses)) == (2 + 2 * MAX_NOTES, MAX_NOTES)
    assert max(len(each.name) for each in seen.worker_statuses) == MAX_TEXT
    assert len(encode(seen)) < MAX_HEADER_BYTES / 8
    assert decode(encode(seen), 0) == seen


def test_a_peer_that_lies_about_itself_breaks_no_answer(cluster):
    most = (1 << 63) - 1
    for told in (most, -most):
        beat = WorkerHeartbeat("a", 0, told, -told, told, cpu_ms=-told)
        cluster.send(b"heartbeat.a", beat, after_s=3.0)
        cluster.send(b"r0", Ping(1, told))
        seen = cluster.look()
        assert decode(encode(seen), 0) == seen
    assert bounded(most) == LIMIT


def test_worker_stats_forget_slowly():
    stats = WorkerStats(0.0)
    for second in range(1000):
        stats.add(float(second), decoded=1)
    assert len(stats._marks) < 20
    done, seconds = stats.recent(1000.0)
    assert done["decoded"] / seconds == pytest.approx(1.0, abs=0.1)
    assert WorkerStats(5.0).recent(5.0)[1] == 0.0


def test_the_quickest_message_tells_the_clock_best():
    clock = ClockOffset()
    assert clock.ahead_us == UNKNOWN_US
    for late_us in (400_000, 5_000, 100_000):
        clock.note(told_us=3_000_000, here_us=late_us)
    assert clock.ahead_us == 2_995_000


def test_who_waits_is_told_of_a_worker_that_hangs_and_of_its_sample(cluster):
    cluster.train()
    held = next(iter(cluster.coordinator.run.leases))
    last = [*held.samples][-1]
    name = held.worker.decode()
    for _ in range(7):
        beat = WorkerHeartbeat(name, 0, lease=held.number, ordinal=last)
        cluster.send(b"heartbeat." + held.worker, beat, after_s=1.0)
    said = waiting_reason(cluster.coordinator)
    where = f"sample number {held.samples[last].index} of the source"
    assert said.endswith(f"; worker {name} has shown no result for 7 s, and works on {where}")
