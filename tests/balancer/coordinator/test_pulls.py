"""Workers that serve payloads: who may, what ranks are told, and what becomes of complaints."""

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.payload_servers import PullCredentials
from counterpoise.balancer.coordinator.run.doubted_results import MAX_PULLED_BYTES
from counterpoise.balancer.coordinator.status_report import make_status_report
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Ack,
    Batch,
    DecodedItem,
    DecodeDone,
    EpochPosition,
    FreeSlots,
    Handles,
    Lease,
    PayloadHandle,
    PeerRejected,
    Probed,
    ProbeDone,
    PullFailed,
    RankBye,
    RankHello,
    RequestBatch,
    RunFailed,
    ServePayloads,
    StartRun,
    StopServing,
    WorkerBye,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.server.pull_credentials import new_credentials
from counterpoise.workers.codec.sample_layout import why_bad_layout
from tests.balancer.protocol.own_runs import own_runs

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
            make_credentials=credentials or (lambda _: PullCredentials(b"", b"secret")),
            incarnation=3,
        )
        self.sent, self.serials, self.now = [], 0, 0.0
        for name in (b"w0", b"w1"):
            self.tell(name, WorkerHello(name.decode(), 0, "h", 0, address=address, key=key))
        self.tell(b"r", RankHello((0,), to_json(self.job), name="the rank"))
        for name in (b"w0", b"w1"):
            self.tell(name, WorkerReady(COUNT, "f", self.coordinator.state.last_welcome))
        self.tell(b"r", StartRun(0, 0, EpochPosition(0, 0, 0, 0)))

    def tell(self, peer, message, *payloads):
        effects = self.coordinator.handle(peer, message, payloads, self.now)
        self.sent += [(each.peer, each.message) for each in effects]

    def told(self, kind, peer=None):
        return [m for to, m in self.sent if isinstance(m, kind) and peer in (None, to)]

    def token(self, peer):
        return self.told(ServePayloads, peer)[-1].token

    def work(self, token_of=None, nbytes=3):
        """Have the workers do what they are leased; payloads are announced by handles."""
        while leases := [(to, m) for to, m in self.sent if isinstance(m, Lease)]:
            self.sent = [each for each in self.sent if not isinstance(each[1], Lease)]
            for peer, lease in leases:
                if lease.kind == "probe":
                    found = [Probed(r.ordinal, f"k{r.index}", (1,), 3) for r in lease.refs]
                    self.tell(peer, ProbeDone(lease.lease, tuple(found)))
                else:
                    self.tell(peer, self.decoded(peer, lease, token_of or self.token, nbytes))

    def decoded(self, peer, lease, token_of, nbytes):
        items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"h") for r in lease.refs)
        handles = []
        for _ in items:
            self.serials += 1
            handles.append(PayloadHandle(token_of(peer), self.serials, 0, 0, nbytes))
        return DecodeDone(lease.lease, items, own_runs(*handles))

    def ask(self, step, microbatch, lost=False):
        """Ask for a microbatch and return it."""
        self.tell(b"r", RequestBatch(0, 0, step, microbatch, lost=lost))
        self.work()
        return self.told(Batch)[-1]

    def ways(self):
        report = make_status_report(self.coordinator.state, 1, "")
        return {each.name: each.transport for each in report.worker_statuses}


def test_each_worker_is_given_a_token_of_its_own_before_its_work():
    job = Job(buffer_bytes=1000)
    instructions = job.told(ServePayloads)
    assert len({each.token for each in instructions}) == 2
    assert {(each.most_bytes, each.secret) for each in instructions} == {(1000, b"secret")}
    kinds = [type(message).__name__ for to, message in job.sent if to == b"w0"]
    assert kinds.index("ServePayloads") < kinds.index("Welcome")


def test_a_microbatch_says_once_where_its_payloads_are_pulled():
    job = Job()
    batch = job.ask(0, 0)
    tokens = {handle.token for handle in batch.handles.runs}
    assert len(batch.handles.runs) == len(batch.items) == 2
    assert {server.token for server in batch.servers} == tokens <= {
        job.token(b"w0"), job.token(b"w1")
    }  # fmt: skip
    assert {(s.address, s.secret) for s in batch.servers} == {(ADDRESS, b"secret")}


def test_what_a_rank_has_taken_is_freed_and_not_before():
    job = Job()
    batch = job.ask(0, 0)
    serials = {handle.serial for handle in batch.handles.runs}

    def freed():
        found = [*job.told(FreeSlots), *(f for lease in job.told(Lease) for f in lease.freed)]
        return {serial for each in found for serial in each.serials}

    assert not freed() & serials
    job.tell(b"r", Ack(0, 0, 0, 0))
    assert serials <= freed()


def test_a_key_pair_s_secret_is_for_ranks_only():
    pair = PullCredentials(b"public of ranks", b"secret of ranks")
    job = Job(key=b"the worker's key", credentials=lambda _: pair)
    (instruction, *_) = job.told(ServePayloads)
    assert (instruction.public, instruction.secret) == (b"public of ranks", b"")
    (server, *_) = job.ask(0, 0).servers
    assert (server.key, server.public, server.secret) == (
        b"the worker's key", b"public of ranks", b"secret of ranks"
    )  # fmt: skip


def test_where_the_balancer_has_keys_nobody_serves_without():
    assert new_credentials(b"", has_keys=True) is None
    assert new_credentials(b"a key", has_keys=True).public
    plain = new_credentials(b"", has_keys=False)
    assert (plain.public, len(plain.secret)) == (b"", 32)
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
    held = job.coordinator.state.run.delivery.budget.held_of(peer)
    assert held == []
    again = job.ask(0, 0, lost=True)
    assert [item.ordinal for item in again.items] == [item.ordinal for item in batch.items]
    before, after = ({h.serial for h in each.handles.runs} for each in (batch, again))
    assert not before & after


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
    assert b"w0" not in job.coordinator.state.workers
    job.tell(b"r", PullFailed(1, "nothing has this token", True))


@pytest.mark.parametrize(
    ("token_of", "nbytes", "reason"),
    [
        (lambda _: 99, 3, "a payload in its own memory, which no rank can reach"),
        (None, 0, "a payload of 0 bytes, to be pulled"),
        (None, MAX_PULLED_BYTES + 1, "bytes, to be pulled"),
    ],
)
def test_a_handle_that_no_rank_could_use_is_rubbish(token_of, nbytes, reason):
    job = Job()
    job.tell(b"r", RequestBatch(0, 0, 0, 0))
    job.work(token_of, nbytes)
    assert not job.told(Batch)
    assert reason in job.told(PeerRejected)[0].reason


@pytest.mark.parametrize(
    ("offsets", "lengths"), [((0, 0), (6, 6)), ((0, 3), (3, 3))], ids=["one twice", "side by side"]
)
def test_a_run_that_is_pulled_has_one_payload(offsets, lengths, monkeypatch):
    job = Job()
    job.tell(b"w1", WorkerBye())  # two would share the first microbatch

    def decoded(peer, lease, token_of, _):
        job.serials += 1
        run = PayloadHandle(token_of(peer), job.serials, 0, 0, 6)
        items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"h") for r in lease.refs)
        assert len(items) == 2
        return DecodeDone(lease.lease, items, Handles((run,), (0, 0), offsets, lengths))

    monkeypatch.setattr(job, "decoded", decoded)
    job.tell(b"r", RequestBatch(0, 0, 0, 0))
    job.work()
    assert not job.told(Batch)
    assert "a run of several payloads, to be pulled" in job.told(PeerRejected)[0].reason


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
