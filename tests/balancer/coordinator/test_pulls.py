"""Workers that serve payloads: who may, what ranks are told, and what becomes of complaints."""

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.run.epoch import MAX_PULLED_BYTES
from counterpoise.balancer.coordinator.status_report import make_status_report
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    PeerRejected,
    RankBye,
    RankHello,
    RunFailed,
    StartRun,
    WorkerBye,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    Batch,
    DecodeDone,
    Lease,
    PayloadsFreed,
    ProbeDone,
    PullFailed,
    RequestBatch,
    ServePayloads,
    StopServing,
)
from counterpoise.balancer.server.loop import new_credentials
from counterpoise.workers.codec.fields import why_bad_layout

PLAN = PlanConfig(
    ranks=1, samples_per_step=4, accumulate=2, resources=("tokens",), budgets=(None,),
    grouping="fixed", partition="greedy", batch_size=2, seed=1,
)  # fmt: skip
COUNT = 16
ADDRESS = "tcp://10.0.0.7:4000"


class Job:
    """A coordinator with one rank, and workers elsewhere that decode at once."""

    def __init__(self, address=ADDRESS, key=b"", credentials=None, **changes):
        self.job = JobSpec(plan=PLAN, source={"pattern": "x"}, **changes)
        self.coordinator = Coordinator(
            check_layout=why_bad_layout,
            make_credentials=credentials or (lambda _: (b"", b"secret")),
            incarnation=3,
        )
        self.sent, self.serials, self.now, self.freed_with_leases = [], 0, 0.0, []
        for name in (b"w0", b"w1"):
            self.tell(name, WorkerHello(name.decode(), 0, "h", 0, address=address, key=key))
        self.tell(b"r", RankHello((0,), to_json(self.job), name="the rank"))
        for name in (b"w0", b"w1"):
            self.tell(name, WorkerReady(COUNT, "f", self.coordinator.last_welcome))
        self.tell(b"r", StartRun(0, 0, EpochPosition(0, 0, 0, 0, "")))

    def tell(self, peer, message, *payloads):
        self.take(self.coordinator.handle(peer, message, payloads, self.now))

    def take(self, effects):
        self.sent += [(each.peer, each.message) for each in effects]
        leases = [each.message for each in effects if isinstance(each.message, Lease)]
        self.freed_with_leases += [serial for lease in leases for serial in lease.freed]

    def told(self, kind, peer=None):
        return [m for to, m in self.sent if isinstance(m, kind) and peer in (None, to)]

    def token(self, peer):
        return self.told(ServePayloads, peer)[-1].token

    def work(self, nbytes=3, most=1000):
        """Have the workers do what they are leased, and keep the payloads."""
        while most and (leases := self.told_leases()):
            for peer, lease in leases[:most]:
                most -= 1
                self.sent.remove((peer, lease))
                if lease.kind == "probe":
                    found = [Probed(r.ordinal, f"k{r.index}", (1,), 3) for r in lease.refs]
                    self.tell(peer, ProbeDone(lease.lease, tuple(found)))
                else:
                    self.tell(peer, self.decoded(lease, nbytes))

    def told_leases(self):
        return [(to, m) for to, m in self.sent if isinstance(m, Lease)]

    def decoded(self, lease, nbytes=3):
        first, self.serials = self.serials + 1, self.serials + len(lease.refs)
        return DecodeDone(
            lease.lease,
            tuple(
                DecodedItem(r.ordinal, f"k{r.index}", (), b"h", first + n, nbytes)
                for n, r in enumerate(lease.refs)
            ),
        )

    def freed(self):
        """The serials that workers were told to forget."""
        alone = [serial for each in self.told(PayloadsFreed) for serial in each.serials]
        return sorted([*alone, *self.freed_with_leases])

    def ask(self, step, microbatch, lost=False):
        """Ask for a microbatch and return it."""
        self.tell(b"r", RequestBatch(0, 0, step, microbatch, lost=lost))
        self.work()
        return self.told(Batch)[-1]

    def ways(self):
        report = make_status_report(self.coordinator, 1)
        return {each.name: each.transport for each in report.worker_statuses}


def test_each_worker_is_given_a_token_of_its_own_before_its_work():
    job = Job(buffer_bytes=1000)
    instructions = job.told(ServePayloads)
    assert len({each.token for each in instructions}) == 2
    assert {(each.most_bytes, each.secret) for each in instructions} == {(1000, b"secret")}
    kinds = [type(message).__name__ for to, message in job.sent if to == b"w0"]
    assert kinds.index("ServePayloads") < kinds.index("Welcome")


def serials(batch):
    return sorted(item.serial for item in batch.items)


def test_a_microbatch_says_once_where_its_payloads_are_pulled():
    job = Job()
    batch = job.ask(0, 0)
    tokens = {item.token for item in batch.items}
    assert len(batch.items) == 2
    assert {server.token for server in batch.servers} == tokens <= {
        job.token(b"w0"), job.token(b"w1")
    }  # fmt: skip
    assert {(s.address, s.secret) for s in batch.servers} == {(ADDRESS, b"secret")}


def test_what_a_rank_has_taken_is_freed_and_not_before():
    job = Job()
    batch = job.ask(0, 0)
    assert not job.freed()
    job.tell(b"r", Ack(0, 0, 0, 0))
    assert job.freed() == serials(batch)


def test_a_worker_at_work_is_told_of_freed_payloads_with_its_next_lease_or_soon():
    job = Job()
    job.tell(b"w1", WorkerBye())  # two would share the first microbatch
    while job.told_leases()[0][1].kind == "probe":
        job.work(most=1)
    late = DecodedItem(0, "k", (), b"h", 77, 3)
    job.tell(b"w0", DecodeDone(1, (late,)))
    assert not job.freed()
    assert job.coordinator.next_deadline() <= job.now + 0.1
    job.take(job.coordinator.tick(job.now + 0.1))
    assert job.told(PayloadsFreed, b"w0") == [PayloadsFreed((77,))]


def test_at_the_end_everything_is_freed_once():
    job = Job()
    for step in range(COUNT // 4):
        for microbatch in range(2):
            job.ask(step, microbatch)
            job.tell(b"r", Ack(0, 0, step, microbatch))
    assert job.freed() == list(range(1, job.serials + 1))
    assert sum(map(len, job.coordinator.kept.kept.values())) == 0


def test_a_rank_that_leaves_frees_what_was_decoded_ahead():
    job = Job()
    job.ask(0, 0)
    job.tell(b"r", RankBye())
    assert job.freed() == list(range(1, job.serials + 1))


def test_a_repeated_result_frees_nothing():
    job = Job()
    while job.told_leases()[0][1].kind == "probe":
        job.work(most=1)
    peer, lease = job.told_leases()[0]
    done = job.decoded(lease)
    for _ in range(3):
        job.tell(peer, done)
    assert not job.freed()
    assert sum(map(len, job.coordinator.kept.kept.values())) == len(lease.refs)


def test_a_result_that_nobody_wants_is_freed():
    job = Job()
    job.work()
    late = DecodeDone(1, (DecodedItem(0, "k", (), b"h", 77, 3),))
    job.tell(b"w0", late)
    assert job.told(PayloadsFreed, b"w0") == [PayloadsFreed((77,))]
    job.tell(b"stranger", late)
    assert job.told(PayloadsFreed, b"stranger") == [PayloadsFreed((77,))]


def test_a_microbatch_that_was_lost_is_decoded_again():
    job = Job()
    first = job.ask(0, 0)
    second = job.ask(0, 0, lost=True)
    assert [item.key for item in first.items] == [item.key for item in second.items]
    assert not set(serials(first)) & set(serials(second))
    assert job.freed() == serials(first)
    assert job.coordinator.run.delivery.budget.sent_bytes == 6


def test_asked_for_again_it_is_sent_again_as_it_is_there():
    job = Job()
    assert job.ask(0, 0) == job.ask(0, 0)


def test_what_a_worker_that_ends_had_is_decoded_by_the_others():
    job = Job()
    job.work()
    budget = job.coordinator.run.delivery.budget
    before = budget.held_bytes
    job.tell(b"w0", WorkerBye())
    assert budget.held_bytes < before
    job.work()
    assert budget.held_bytes == before
    assert {sample.payload.worker for sample in budget.held.values()} == {b"w1"}
    assert not job.freed()  # there is nobody to tell


def test_payloads_needed_last_are_dropped_and_freed_where_memory_is_short():
    job = Job(buffer_bytes=12)
    for step in range(COUNT // 4):
        for microbatch in range(2):
            job.ask(step, microbatch)
            budget = job.coordinator.run.delivery.budget
            assert budget.held_bytes + budget.sent_bytes <= 12
            job.tell(b"r", Ack(0, 0, step, microbatch))
    assert job.freed() == list(range(1, job.serials + 1))


def test_a_key_pair_s_secret_is_for_ranks_only():
    pair = (b"public of ranks", b"secret of ranks")
    job = Job(key=b"the worker's key", credentials=lambda _: pair)
    (instruction, *_) = job.told(ServePayloads)
    assert (instruction.public, instruction.secret) == (b"public of ranks", b"")
    (server, *_) = job.ask(0, 0).servers
    assert (server.key, server.public, server.secret) == (
        b"the worker's key", b"public of ranks", b"secret of ranks"
    )  # fmt: skip


def test_where_the_balancer_has_keys_nobody_serves_without():
    assert new_credentials(b"", has_keys=True) is None
    pair, plain = new_credentials(b"a key", has_keys=True), new_credentials(b"", has_keys=False)
    assert pair is not None
    assert pair[0]
    assert plain is not None
    assert (plain[0], len(plain[1])) == (b"", 32)
    job = Job(credentials=lambda _: None)
    assert not job.told(ServePayloads)
    assert set(job.ways().values()) == {
        "inline: the balancer has keys, and this worker would serve without"
    }


def test_inline_and_without_an_address_nothing_is_kept():
    job = Job(transport="inline")
    assert {each.most_bytes for each in job.told(ServePayloads)} == {0}
    assert set(job.ways().values()) == {'inline: transport="inline" was given'}
    assert not Job(address="").told(ServePayloads)


def test_a_worker_out_of_reach_sends_inline_and_what_it_has_is_decoded_again():
    job = Job()
    batch = job.ask(0, 0)
    (server, *_) = batch.servers
    peer = b"w0" if server.token == job.token(b"w0") else b"w1"
    job.tell(b"r", PullFailed(server.token, "nobody listens there", False))
    job.tell(b"r", PullFailed(server.token, "nobody listens there", False))
    reason = "the rank cannot pull: nobody listens there"
    # It is told again: it may not have heard it the first time.
    assert job.told(StopServing) == job.told(StopServing, peer) == [StopServing(reason)] * 2
    assert job.ways()[peer.decode()] == f"inline: {reason}"
    held = job.coordinator.run.delivery.budget.held.values()
    assert not any(each.payload.worker == peer for each in held)
    again = job.ask(0, 0, lost=True)
    assert [item.ordinal for item in again.items] == [item.ordinal for item in batch.items]
    assert not set(serials(batch)) & set(serials(again))


def test_the_next_job_s_ranks_may_reach_it():
    job = Job()
    token = job.token(b"w0")
    job.tell(b"r", PullFailed(token, "nobody listens there", False))
    job.tell(b"r", RankBye())
    job.sent.clear()
    job.tell(b"q", RankHello((0,), to_json(job.job)))
    assert [each.token for each in job.told(ServePayloads, b"w0")] == [token]
    assert not job.ways()["w0"].startswith("inline: the rank")


def test_a_worker_whose_payloads_are_rubbish_is_turned_away():
    job = Job()
    for _ in range(3):
        assert not job.told(PeerRejected, b"w0")
        job.tell(b"r", PullFailed(job.token(b"w0"), "its header describes no fields", True))
    (rejected,) = job.told(PeerRejected, b"w0")
    assert "its header describes no fields" in rejected.reason
    assert b"w0" not in job.coordinator.workers
    job.tell(b"r", PullFailed(1, "nothing has this token", True))


@pytest.mark.parametrize(
    ("address", "nbytes", "reason"),
    [
        ("", 3, "a payload that it keeps, where no rank can pull it"),
        (ADDRESS, 0, "a payload of 0 bytes, to be pulled"),
        (ADDRESS, MAX_PULLED_BYTES + 1, "bytes, to be pulled"),
    ],
)
def test_a_payload_that_no_rank_could_pull_is_rubbish(address, nbytes, reason):
    job = Job(address)
    job.tell(b"r", RequestBatch(0, 0, 0, 0))
    job.work(nbytes)
    assert not job.told(Batch)
    assert reason in job.told(PeerRejected)[0].reason


def test_where_it_must_be_direct_a_worker_that_cannot_is_refused():
    job = Job(address="", transport="direct")
    assert len(job.told(PeerRejected)) == 2
    (failure, *_) = job.told(RunFailed)
    assert 'transport="direct"' in failure.reason
    other = Job(transport="direct")
    other.tell(b"r", PullFailed(other.token(b"w0"), "no way there", False))
    (failure, *_) = other.told(RunFailed)
    assert "the rank cannot pull: no way there" in failure.reason


def test_a_transport_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="transport is 'pigeon', allowed are"):
        JobSpec(plan=PLAN, transport="pigeon")
