"""The coordinator where the simulation does not reach: who may come, who must go, who is told."""

from dataclasses import replace

import pytest

from counterpoise.balancer.coordinator import Coordinator
from counterpoise.balancer.job import Job, to_json
from counterpoise.balancer.messages import (
    Ack,
    Ask,
    Begin,
    Bye,
    DecodeDone,
    EpochEnd,
    Lease,
    Ping,
    Place,
    Probed,
    ProbeDone,
    RankBye,
    RankHello,
    Ready,
    Refused,
    Revoke,
    Status,
    Stranger,
    Trouble,
    Welcome,
    WorkerBeat,
    WorkerBye,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.plan import PlanConfig
from counterpoise.balancer.rank_side import APART_S

START = Place(0, 0, 0, 0)
PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,), "isf", "greedy")
JOB = Job(source={"pattern": "x"}, plan=PLAN)
OTHER = replace(JOB, on_error="skip")


class Cluster:
    """A coordinator and what it sends, by peer."""

    def __init__(self, job=None):
        self.coordinator = Coordinator(job)
        self.now = 0.0

    def say(self, peer, *said, after_s=0.0):
        """Say something; return (peer, message) of all that is sent."""
        self.now += after_s
        sent = [
            send
            for message in said
            for send in self.coordinator.handle(peer, message, (b"",), 0, self.now)
        ]
        return [(send.peer, send.message) for send in sent]

    def tick(self, after_s=0.0):
        self.now += after_s
        return [(send.peer, send.message) for send in self.coordinator.tick(self.now)]

    def gone(self, peer, undelivered):
        sent = self.coordinator.gone(peer, undelivered, self.now)
        return [(send.peer, send.message) for send in sent]

    def worker(self, peer=b"w", incarnation=0, count=20):
        hello = WorkerHello(peer.decode(), incarnation, "host", 0)
        return self.say(peer, hello, WorkerReady(count, "same"))

    def probe_all(self, peer):
        """Say what all samples of a worker's probe leases cost."""
        for held in self.coordinator.run.leases.of(peer):
            found = tuple(Probed(ordinal, f"k{ordinal}", (1,), 1) for ordinal in held.samples)
            if held.kind == "probe":
                self.say(peer, ProbeDone(held.number, found))

    def rank(self, peer, ranks=(0, 1), job=JOB):
        return self.say(peer, RankHello(ranks, to_json(job)))


def kinds(sent, peer):
    return [type(message).__name__ for to, message in sent if to == peer]


def started(ranks=((0,), (1,))):
    """A cluster at work: one worker, and a process for each of `ranks`, at run 0."""
    cluster = Cluster()
    for number, played in enumerate(ranks):
        cluster.rank(b"r%d" % number, played)
    cluster.worker()
    sent = []
    for number in range(len(ranks)):
        sent += cluster.say(b"r%d" % number, Begin(0, 0, START))
    assert any(isinstance(message, Lease) for _, message in sent)
    return cluster


# --- workers


def test_a_worker_that_is_not_known_is_asked_to_say_hello():
    cluster = Cluster(JOB)
    assert cluster.say(b"beat.w", WorkerBeat("w", 0)) == [(b"beat.w", Stranger())]
    cluster.worker()
    assert cluster.say(b"beat.w", WorkerBeat("w", 0)) == []


def test_hello_said_twice_takes_nothing_from_a_worker():
    cluster = started()
    leases = cluster.coordinator.run.leases.of(b"w")
    assert leases
    assert cluster.say(b"w", WorkerHello("w", 0, "host", 0)) == []
    assert cluster.coordinator.run.leases.of(b"w") == leases


def test_a_worker_that_waits_for_a_job_and_says_so_again_is_not_lost():
    cluster = Cluster()
    hello = WorkerHello("w", 0, "host", 0)
    cluster.say(b"w", hello, hello)
    assert cluster.coordinator.books.lost == 0
    cluster.say(b"another", hello)
    assert cluster.coordinator.books.lost == 1


def test_an_older_incarnation_is_sent_away():
    cluster = Cluster(JOB)
    cluster.worker(b"w", incarnation=1)
    late = cluster.say(b"late", WorkerHello("w", 0, "host", 0))
    assert late == [(b"late", Bye())]
    assert cluster.say(b"beat", WorkerBeat("w", 1)) == []


def test_a_worker_that_missed_beats_is_told_something_so_that_a_dead_one_is_noticed():
    cluster = started()
    second = cluster.say(b"v", WorkerHello("v", 0, "host", 1), WorkerReady(20, "same"))
    assert kinds(second, b"v")[0] == "Welcome"
    assert (b"w", Revoke(0)) not in cluster.tick(1.0)
    nudges = cluster.tick(2.0)
    assert (b"w", Revoke(0)) in nudges
    granted = cluster.gone(b"w", Revoke(0))
    assert kinds(granted, b"v") == ["Lease"] * len(granted)
    assert cluster.coordinator.run.leases.of(b"w") == []


def test_a_silent_worker_is_lost_and_a_beating_one_is_not():
    cluster = started()
    for _ in range(20):
        cluster.say(b"beat.w", WorkerBeat("w", 0), after_s=1.0)
        cluster.tick()
    assert cluster.coordinator.run.leases.of(b"w")
    cluster.tick(11.0)
    assert cluster.say(b"beat.w", WorkerBeat("w", 0)) == [(b"beat.w", Stranger())]


def test_a_worker_with_other_data_is_refused():
    cluster = started()
    cluster.say(b"v", WorkerHello("v", 0, "host", 1))
    (_, refused), *_ = cluster.say(b"v", WorkerReady(21, "other"))
    assert "install the same versions" in refused.reason


def test_workers_share_what_is_to_be_probed():
    cluster = Cluster()
    cluster.rank(b"r")
    for peer in (b"u", b"v"):
        cluster.worker(peer)
    sent = cluster.say(b"r", Begin(0, 0, START))
    leases = [(peer, len(lease.refs)) for peer, lease in sent if isinstance(lease, Lease)]
    assert leases[:2] == [(b"u", 2), (b"v", 1)]
    assert sum(count for _, count in leases) == PLAN.samples_per_step


def test_a_worker_that_leaves_gives_its_work_to_the_others():
    cluster = started()
    cluster.worker(b"v")
    cluster.say(b"w", WorkerBye())
    assert cluster.coordinator.run.leases.of(b"v")
    assert not cluster.coordinator.run.leases.of(b"w")


def in_hand(cluster, peer):
    """What a worker that hangs says it works on: the first of its oldest lease."""
    for held in cluster.coordinator.run.leases.of(peer):
        return held.number, next(iter(held.samples))
    return 0, -1


def beat(cluster, peer, incarnation=0, hand=(0, -1), after_s=0.0):
    name, (lease, ordinal) = peer.decode(), hand
    said = WorkerBeat(name, incarnation, lease=lease, ordinal=ordinal)
    return cluster.say(b"beat." + peer, said, after_s=after_s)


def strikes(cluster):
    return sum(sample.strikes for sample in cluster.coordinator.run.feed.samples.values())


def test_a_sample_on_which_workers_hang_is_given_up():
    cluster = Cluster()
    cluster.rank(b"r")
    workers = [b"u", b"v", b"w"]
    for peer in workers:
        cluster.worker(peer)
    cluster.say(b"r", Begin(0, 0, START))
    run = cluster.coordinator.run
    first = next(iter(run.feed.samples.values()))
    for _ in range(3 * 40):
        for peer in workers:
            number, ordinal = in_hand(cluster, peer)
            if ordinal > first.ordinal:
                costs = Probed(ordinal, str(ordinal), (1,), 1)
                cluster.say(peer, ProbeDone(number, (costs,)))
            beat(cluster, peer, hand=in_hand(cluster, peer), after_s=1.02)
        cluster.tick()
    assert first.strikes == 3
    assert first.reason == "3 worker processes died or hung while they worked on it"


def test_a_lease_that_was_lost_on_its_way_makes_no_sample_suspect():
    cluster = started()
    for _ in range(int(JOB.lease_s) + 2):
        beat(cluster, b"w", after_s=1.0)
        cluster.tick()
    assert strikes(cluster) == 0


def test_a_worker_that_was_cut_off_and_comes_back_makes_no_sample_suspect():
    cluster = started()
    cluster.tick(after_s=11.0)
    assert not cluster.coordinator.run.leases.of(b"w")
    cluster.worker()
    assert strikes(cluster) == 0


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_worker_that_comes_back_as_a_new_process_has_died_on_a_sample(lost_first):
    cluster = started()
    number, _ = in_hand(cluster, b"w")
    beat(cluster, b"w", hand=(number, 2))
    cluster.tick(after_s=11.0 if lost_first else 1.0)
    cluster.say(b"again", WorkerHello("w", 1, "host", 0))
    assert [s.ordinal for s in cluster.coordinator.run.feed.samples.values() if s.strikes] == [2]


def test_a_worker_that_stays_silent_for_as_long_as_a_lease_counts_as_dead():
    cluster = started()
    cluster.tick(after_s=11.0)
    cluster.tick(after_s=JOB.lease_s - 12.0)
    assert strikes(cluster) == 0
    cluster.tick(after_s=2.0)
    assert strikes(cluster) == 1
    cluster.tick(after_s=JOB.lease_s)
    assert strikes(cluster) == 1


def late(cluster):
    """Let a lease of the worker run out; return it, and its first sample."""
    held = cluster.coordinator.run.leases.of(b"w")[0]
    sample = next(iter(held.samples.values()))
    for _ in range(122):
        beat = WorkerBeat("w", 0, lease=held.number, ordinal=sample.ordinal)
        cluster.say(b"beat.w", beat, after_s=1.0)
        cluster.tick()
    assert cluster.coordinator.run.leases.of(b"w") == []
    return held, sample


def costs(held, sample):
    return ProbeDone(held.number, (Probed(sample.ordinal, "k", (1,), 1),))


def test_a_sample_that_takes_longer_than_a_lease_counts_when_it_comes():
    cluster = started()
    held, sample = late(cluster)
    granted = cluster.say(b"w", costs(held, sample))
    assert sample.cost == (1,)
    assert not sample.reason
    leased = [ref.ordinal for _, m in granted if isinstance(m, Lease) for ref in m.refs]
    assert leased
    assert sample.ordinal not in leased


@pytest.mark.parametrize(("peer", "incarnation"), [(b"w", 0), (b"w2", 1)])
def test_what_was_in_hand_before_another_hello_does_not_count(peer, incarnation):
    cluster = started()
    held, sample = late(cluster)
    if peer == b"w":
        cluster.gone(b"w", Revoke(0))
    cluster.say(peer, WorkerHello("w", incarnation, "host", 0), WorkerReady(20, "same"))
    cluster.say(b"w", costs(held, sample))
    assert sample.cost is None


def test_a_worker_that_begins_one_sample_after_another_keeps_its_leases():
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of(b"w")
    assert len(held.samples) > 3
    for ordinal in held.samples:
        for _ in range(100):
            beat = WorkerBeat("w", 0, lease=held.number, ordinal=ordinal)
            cluster.say(b"beat.w", beat, after_s=1.0)
            cluster.tick()
    assert cluster.coordinator.run.leases.of(b"w") == [held]


def test_a_worker_that_cannot_open_the_data_is_told_to_all_and_serves_the_next_job():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.say(b"w", WorkerHello("w", 0, "host", 0))
    sent = cluster.say(b"w", WorkerFailed("no such file"))
    assert sent == [(b"r", Trouble("worker", "worker w: no such file"))]
    cluster.say(b"r", RankBye())
    assert kinds(cluster.rank(b"s", job=OTHER), b"w") == ["Welcome"]


# --- ranks


def test_a_rank_of_another_job_waits_until_the_first_is_known_to_be_gone():
    cluster = started()
    asked = cluster.rank(b"new", job=OTHER)
    assert kinds(asked, b"r0") == kinds(asked, b"r1") == ["Status"]
    for peer in (b"r0", b"r1"):
        cluster.gone(peer, Status(0, 0, ""))
    sent = cluster.tick()
    assert kinds(sent, b"new") == []
    assert kinds(sent, b"w") == ["Welcome"]
    assert cluster.say(b"w", WorkerReady(7, "other", 1)) == [(b"new", Ready(7, "other"))]


def test_a_rank_of_another_job_is_refused_while_the_first_is_there():
    cluster = started()
    cluster.rank(b"new", job=OTHER)
    ((_, refused),) = [pair for pair in cluster.tick() if pair[0] == b"new"]
    assert refused == Refused(
        "this balancer serves another job: on_error: 'raise' here, 'skip' there"
    )


def test_ranks_that_start_anew_end_the_run_of_those_before():
    cluster = started()
    sent = cluster.rank(b"s1", (1,))
    assert (kinds(sent, b"r0"), kinds(sent, b"r1")) == (["Stranger"], ["Trouble"])
    assert cluster.coordinator.run is None
    sent = cluster.rank(b"s0", (0,))
    assert kinds(sent, b"s1") == []
    cluster.say(b"s1", Begin(0, 0, START))
    cluster.say(b"s0", Begin(0, 0, START))
    assert cluster.coordinator.run.number == 0
    assert kinds(cluster.say(b"r1", Ask(0, 1, 0, 0)), b"r1") == ["Trouble"]
    assert kinds(cluster.say(b"r0", Ask(0, 0, 0, 0)), b"r0") == ["Stranger"]
    assert kinds(cluster.rank(b"r0", (0,)), b"r0") == ["Trouble"]
    assert kinds(cluster.tick(100), b"s0") == ["Status"]


def test_a_rank_that_was_not_in_a_former_launch_says_so_and_goes_on():
    """The last words of rank 1's former life come after the new rank 0's first."""
    cluster = started(ranks=((1,),))
    cluster.rank(b"s0", (0,))
    cluster.say(b"s0", Begin(0, 0, START))
    assert kinds(cluster.rank(b"s1", (1,)), b"s0") == ["Stranger"]
    cluster.rank(b"s0", (0,))
    cluster.say(b"s0", Begin(0, 0, START))
    cluster.say(b"s1", Begin(0, 0, START))
    assert cluster.coordinator.run.number == 0
    assert Trouble not in [type(message) for _, message in cluster.tick(2 * APART_S)]


def test_a_rank_that_goes_on_alone_is_told_when_another_was_started_anew():
    cluster = started()
    cluster.rank(b"s1", (1,))
    cluster.rank(b"r0", (0,))
    cluster.say(b"r0", Begin(0, 0, START))
    sent = cluster.say(b"s1", Begin(0, 0, Place(8, 2, 2, 0)))
    assert kinds(sent, b"r0") == ["Stranger"]
    cluster.rank(b"r0", (0,))
    assert "Trouble" not in kinds(cluster.say(b"r0", Begin(0, 0, START)), b"r0")
    assert "Trouble" in kinds(cluster.tick(APART_S + 0.1), b"r0")


def do_leases(cluster, sent, peer=b"w"):
    """Let a worker do what it is given, until it is given no more."""
    while leases := [message for to, message in sent if to == peer and isinstance(message, Lease)]:
        sent = []
        for lease in leases:
            for ref in lease.refs:
                key = str(ref.ordinal)
                if lease.kind == "probe":
                    done = ProbeDone(lease.lease, (Probed(ref.ordinal, key, (1,), 1),))
                else:
                    done = DecodeDone(lease.lease, ref.ordinal, key, (1,), b"")
                sent += cluster.say(peer, done)


def test_what_others_had_of_a_run_that_starts_again_for_one_behind_is_kept():
    """After a restart of the balancer the rank that is ahead comes first."""
    cluster = Cluster()
    cluster.rank(b"r1", (1,), OTHER)
    sent = cluster.worker()
    do_leases(cluster, sent + cluster.say(b"r1", Begin(0, 0, START, Place(8, 2, 2, 0))))
    had = cluster.say(b"r1", Ask(0, 1, 2, 0))
    assert kinds(had, b"r1") == ["Batch"]
    cluster.say(b"r1", Ack(0, 1, 2, 0))
    cluster.rank(b"r0", (0,), OTHER)
    cluster.say(b"r0", Begin(0, 0, START, Place(4, 1, 1, 0)))
    run = cluster.coordinator.run
    assert run.begin.start.step == 1
    assert run.delivery.needed((1,)) == (2, 1)
    assert run.delivery.needed((0,)) == (1, 0)
    assert 2 in run.delivery.known()[0]


def test_ranks_of_one_launch_that_seem_to_be_of_two_may_be_in_different_epochs():
    """After two quick restarts rank 1 comes before the last life of rank 0 is replaced."""
    cluster = started(ranks=((0,),))
    cluster.rank(b"s1", (1,))
    cluster.say(b"s1", Begin(0, 0, START))
    cluster.rank(b"s0", (0,))
    cluster.say(b"s0", Begin(0, 0, START))
    cluster.rank(b"s1", (1,))
    cluster.say(b"s1", Begin(0, 0, START))
    assert kinds(cluster.say(b"s0", Begin(1, 1, START)), b"s1") == []
    assert cluster.coordinator.run.number == 0
    cluster.say(b"s1", Begin(1, 1, START))
    assert cluster.coordinator.run.number == 1


def test_a_rank_whose_next_begin_was_lost_is_asked_where_it_is():
    cluster = started()
    cluster.say(b"r0", Begin(1, 1, START))
    assert kinds(cluster.say(b"r1", Ask(1, 1, 0, 0)), b"r1") == ["Stranger"]
    cluster.rank(b"r1", (1,))
    cluster.say(b"r1", Begin(1, 1, START, START))
    assert cluster.coordinator.run.number == 1


@pytest.mark.parametrize(
    "hello", [RankHello((), to_json(JOB)), RankHello((2,), to_json(JOB)), RankHello((0,), "{}"),
              RankHello((-1,), to_json(JOB)), RankHello((0,), "[" * 100_000)]
)  # fmt: skip
def test_a_hello_that_cannot_be_is_refused(hello):
    cluster = Cluster()
    ((_, refused),) = cluster.say(b"r", hello)
    assert isinstance(refused, Refused)


def test_an_ordering_that_the_balancer_cannot_do_is_refused():
    plan = replace(PLAN, ordering="two_opt")
    ((_, refused),) = Cluster().rank(b"r", job=replace(JOB, plan=plan))
    assert "ordering 'two_opt'" in refused.reason


def test_ranks_that_stay_at_different_places_are_told():
    cluster = started(ranks=((0,),))
    cluster.rank(b"r1", (1,))
    assert Trouble not in [type(message) for _, message in cluster.say(b"r1", Begin(0, 1, START))]
    assert cluster.coordinator.run is None
    assert Trouble not in [type(message) for _, message in cluster.tick(APART_S)]
    sent = cluster.tick(0.1)
    for peer in (b"r0", b"r1"):
        (told,) = [message for to, message in sent if to == peer]
        assert "not at the same place" in told.reason


def test_a_rank_of_a_former_launch_at_another_place_is_looked_for_and_forgotten():
    cluster = started(ranks=((1,),))  # it says so to a balancer that has not seen rank 0 before
    cluster.rank(b"new 0", (0,))
    cluster.say(b"new 0", Begin(0, 0, Place(8, 2, 2, 0)))
    ((_, asked),) = [each for each in cluster.tick(1.5) if each[0] == b"r0"]
    cluster.gone(b"r0", asked)
    assert cluster.coordinator.run.begin.at == Place(8, 2, 2, 0)
    cluster.rank(b"new 1", (1,))
    cluster.say(b"new 1", Begin(0, 0, Place(8, 2, 2, 0)))
    assert Trouble not in [type(message) for _, message in cluster.tick(2 * APART_S)]


def test_a_position_beyond_the_data_is_refused():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.worker()
    sent = cluster.say(b"r", Begin(0, 0, Place(21, 5, 5, 0)))
    assert "the ledger stands at sample 21 and there are 20" in sent[0][1].reason
    assert kinds(cluster.say(b"r", Begin(1, 0, START)), b"w") == ["Lease"]


@pytest.mark.parametrize("first", [b"r0", b"r1"])
def test_what_a_rank_was_given_is_not_decoded_for_a_restarted_balancer(first):
    begins = {
        b"r0": [Begin(0, 0, START)],
        b"r1": [Begin(0, 0, START, Place(0, 0, 0, 1), (2,), (0,)), Ack(0, 1, 0, 0)],
    }
    cluster = Cluster()
    for peer, ranks in ((b"r0", (0,)), (b"r1", (1,))):
        cluster.rank(peer, ranks, job=OTHER)
    cluster.worker()
    for peer in sorted(begins, key=lambda peer: peer != first):
        cluster.say(peer, *begins[peer])
    run = cluster.coordinator.run
    while not run.delivery.steps:
        cluster.probe_all(b"w")
    (had,) = run.delivery.steps[0].ranks[1][0].samples
    decoding = {o for held in run.leases.of(b"w") if held.kind == "decode" for o in held.samples}
    assert decoding
    assert not decoding & {2, had.ordinal}


def test_nobody_is_let_go_before_the_others_are_done():
    cluster = started()
    assert kinds(cluster.say(b"r0", RankBye()), b"r0") == []
    assert kinds(cluster.say(b"r1", RankBye()), b"r0") == ["Bye"]


def test_a_rank_at_its_end_does_not_hold_the_others():
    cluster = Cluster()
    for peer, ranks in ((b"r0", (0,)), (b"r1", (1,))):
        cluster.rank(peer, ranks)
    cluster.worker(count=20)
    for peer in (b"r0", b"r1"):
        cluster.say(peer, Begin(0, 0, Place(20, 5, 5, 0)))
    assert cluster.say(b"r0", RankBye()) == []
    assert cluster.say(b"r1", Ask(0, 1, 5, 0)) == [(b"r1", EpochEnd(0, 5)), (b"r0", Bye())]


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_rank_that_stays_away_from_the_next_epoch_is_named(goodbye):
    cluster = started()
    cluster.say(b"r1", RankBye()) if goodbye else cluster.gone(b"r1", Status(0, 0, ""))
    cluster.say(b"r0", Begin(1, 1, START))
    (status,) = [m for _, m in cluster.say(b"r0", Ping()) if isinstance(m, Status)]
    assert status.waiting == "ranks (1,), which have gone"
    cluster.tick()
    assert "Trouble" not in kinds(cluster.tick(119.0), b"r0")
    (trouble,) = [m for to, m in cluster.tick(2.0) if (to, type(m)) == (b"r0", Trouble)]
    assert trouble.reason.startswith("ranks (1,) have gone, and the others have waited 120 s")


def test_a_rank_that_comes_back_in_time_begins_the_next_epoch():
    cluster = started()
    cluster.gone(b"r1", Status(0, 0, ""))
    cluster.say(b"r0", Begin(1, 1, START))
    for _ in range(3):
        cluster.tick(50.0)
        cluster.worker()
        cluster.rank(b"r1", (1,))
        cluster.say(b"r1", Begin(0, 0, START))
        cluster.tick(50.0)
        cluster.gone(b"r1", Status(0, 0, ""))
    cluster.rank(b"r1", (1,))
    cluster.say(b"r1", Begin(1, 1, START))
    assert cluster.coordinator.trouble is None
    assert cluster.coordinator.run.number == 1


def test_a_rank_that_is_there_may_take_its_time_between_epochs():
    cluster = started()
    cluster.say(b"r0", Begin(1, 1, START))
    for _ in range(100):
        assert "Trouble" not in kinds(cluster.tick(100.0), b"r0")


def test_a_rank_cannot_ask_or_acknowledge_for_another():
    cluster = started()
    cluster.say(b"r0", Ask(0, 1, 0, 0), Ack(0, 1, 0, 0), Ack(0, -1, 0, 0))
    assert cluster.coordinator._asks.of(0) == []


def test_a_rank_is_told_now_and_then_that_the_balancer_is_there():
    cluster = started()
    assert kinds(cluster.tick(10.5), b"r0") == ["Status"]
    assert kinds(cluster.say(b"x", Ping()), b"x") == ["Status"]


def test_all_ranks_are_told_when_the_balancer_is_stopped():
    cluster = started()
    told = [send.peer for send in cluster.coordinator.stop()]
    assert sorted(told) == [b"r0", b"r1"]


def test_costs_that_cannot_be_end_the_run_with_a_reason():
    cluster = started()
    held = cluster.coordinator.run.leases.of(b"w")[0]
    ordinal = next(iter(held.samples))
    wrong = ProbeDone(held.number, (Probed(ordinal, "k", (-1,), 0),))
    sent = cluster.say(b"w", wrong)
    assert "non-negative" in sent[0][1].reason


def test_a_job_is_given_to_workers_whenever_they_come():
    cluster = Cluster()
    hello = WorkerHello("w", 0, "host", 0)
    assert cluster.say(b"w", hello) == []
    assert cluster.rank(b"r") == [(b"w", Welcome(to_json(JOB)))]
    assert cluster.say(b"v", WorkerHello("v", 0, "host", 0)) == [(b"v", Welcome(to_json(JOB)))]
