"""Payloads in workers' memory: each run that is announced is freed once, when nobody needs it."""

import pytest
from msgspec import structs

from counterpoise.balancer.coordinator.machine import Coordinator
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
    Probed,
    ProbeDone,
    RankBye,
    RankHello,
    RequestBatch,
    StartRun,
    WorkerBye,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.wire import WireError, decode, encode
from tests.balancer.protocol.own_runs import own_runs

PLAN = PlanConfig(
    ranks=1, samples_per_step=4, accumulate=2, resources=("tokens",), budgets=(None,),
    grouping="fixed", partition="greedy", batch_size=2, seed=1,
)  # fmt: skip
COUNT = 16


class Job:
    """A coordinator with one rank and workers that decode what they are leased at once.

    in_run: how many payloads they put into one run.
    """

    def __init__(self, in_run=1, **changes):
        self.job = JobSpec(plan=PLAN, **changes)
        self.in_run = in_run
        self.coordinator = Coordinator(self.job)
        self.serials, self.freed, self.batches, self.leases = 0, [], [], []
        self.now = 0.0
        for name in (b"w0", b"w1"):
            self.tell(name, WorkerHello(name.decode(), 0, "h", 0))
            self.tell(name, WorkerReady(COUNT, "f", 0))
        self.tell(b"r", RankHello((0,), to_json(self.job)))
        self.tell(b"r", StartRun(0, 0, EpochPosition(0, 0, 0, 0)))

    def tell(self, peer, message, *payloads):
        self.take(self.coordinator.handle(peer, message, payloads, self.now))

    def take(self, effects):
        for effect in effects:
            if isinstance(effect.message, Lease):
                self.leases.append((effect.peer, effect.message))
                self.freed += [(effect.peer, freed) for freed in effect.message.freed]
            elif isinstance(effect.message, Batch):
                assert effect.payloads == ()
                self.batches.append(effect.message)
            elif isinstance(effect.message, FreeSlots):
                self.freed.append((effect.peer, effect.message))

    def work(self, most=1000):
        """Have the workers do what they are leased; payloads are announced by handles."""
        while self.leases and most:
            most -= 1
            peer, lease = self.leases.pop(0)
            if lease.kind == "probe":
                found = [Probed(r.ordinal, f"k{r.index}", (1,), 100) for r in lease.refs]
                self.tell(peer, ProbeDone(lease.lease, tuple(found)))
            else:
                self.tell(peer, self.decoded(lease))

    def decoded(self, lease):
        items = tuple(DecodedItem(r.ordinal, f"k{r.index}", (), b"h") for r in lease.refs)
        numbers, runs = range(len(items)), []
        for first in numbers[:: self.in_run]:
            self.serials += 1
            size = 100 * len(numbers[first : first + self.in_run])
            runs.append(PayloadHandle(9, self.serials, 0, 0, size))
        run_of = tuple(n // self.in_run for n in numbers)
        offsets = tuple(100 * (n % self.in_run) for n in numbers)
        return DecodeDone(
            lease.lease, items, Handles(tuple(runs), run_of, offsets, (100,) * len(items))
        )

    def ask(self, step, microbatch, lost=False):
        """Ask for a microbatch and return it."""
        self.tell(b"r", RequestBatch(0, 0, step, microbatch, lost=lost))
        self.work()
        return self.batches[-1]

    def freed_serials(self):
        return sorted(serial for _, message in self.freed for serial in message.serials)


def serials(batch):
    return sorted(handle.serial for handle in batch.handles.runs)


def test_what_a_rank_has_taken_is_freed_and_it_is_named():
    job = Job()
    batch = job.ask(0, 0)
    assert len(batch.handles.runs) == len(batch.items) == 2
    assert not job.freed
    job.tell(b"r", Ack(0, 0, 0, 0))
    assert job.freed_serials() == serials(batch)
    assert {message.readers for _, message in job.freed} == {(b"r",)}


def test_an_acknowledgement_counts_before_the_request_that_it_comes_with():
    job = Job()
    batch = job.ask(0, 0)
    job.tell(b"r", RequestBatch(0, 0, 0, 1, ack=Ack(0, 0, 0, 0)))
    assert job.freed_serials() == serials(batch)
    assert job.batches[-1].microbatch == 1


def test_a_worker_at_work_is_told_of_freed_payloads_with_its_next_lease_or_soon():
    job = Job(buffer_bytes=400)
    job.tell(b"w1", WorkerBye())  # two would share the first microbatch
    batch = job.ask(0, 0)
    (tokens,) = {handle.token for handle in batch.handles.runs}
    job.tell(b"r", Ack(0, 0, 0, 0))
    peer, lease = job.leases[-1]
    assert [each.serials for each in lease.freed] == [tuple(serials(batch))]
    job.freed.clear()
    run, late = job.coordinator.state.run, PayloadHandle(tokens, 77, 0, 0, 100)
    assert run.leases.count(peer)
    job.tell(peer, DecodeDone(1, (DecodedItem(0, "k", (), b"h"),), own_runs(late)))
    assert not job.freed
    assert job.coordinator.next_deadline() <= job.now + 0.1
    job.take(job.coordinator.tick(job.now + 0.1))
    assert job.freed == [(peer, FreeSlots((77,), ()))]


@pytest.mark.parametrize("in_run", [1, 3, 100])
def test_at_the_end_everything_is_freed_once(in_run):
    job = Job(in_run)
    for step in range(COUNT // 4):
        for microbatch in range(2):
            job.ask(step, microbatch)
            job.tell(b"r", Ack(0, 0, step, microbatch))
    assert job.freed_serials() == list(range(1, job.serials + 1))
    assert len(job.coordinator.state.shared) == 0
    assert job.coordinator.state.shared.idle_bytes == 0


def test_a_rank_that_leaves_frees_what_was_decoded_ahead():
    job = Job()
    job.ask(0, 0)
    job.tell(b"r", RankBye())
    assert job.freed_serials() == list(range(1, job.serials + 1))


def test_a_repeated_result_frees_nothing():
    job = Job()
    while job.leases[0][1].kind == "probe":
        job.work(most=1)
    peer, lease = job.leases.pop(0)
    done = job.decoded(lease)
    for _ in range(3):
        job.tell(peer, done)
    assert not job.freed
    assert len(job.coordinator.state.shared) == len(lease.refs)


def test_a_result_that_nobody_wants_is_freed_for_all_that_may_have_it():
    job = Job()
    job.work()
    handle = PayloadHandle(9, 77, 0, 0, 100)
    late = DecodeDone(1, (DecodedItem(0, "k", (), b"h"),), own_runs(handle))
    job.tell(b"w0", late)
    assert job.freed == [(b"w0", FreeSlots((77,), ()))]
    job.tell(b"stranger", late)
    assert job.freed[-1] == (b"stranger", FreeSlots((77,), ()))


def test_a_microbatch_that_was_lost_is_decoded_again():
    job = Job()
    first = job.ask(0, 0)
    second = job.ask(0, 0, lost=True)
    assert [item.key for item in first.items] == [item.key for item in second.items]
    assert not set(serials(first)) & set(serials(second))
    assert job.freed_serials() == serials(first)
    assert job.coordinator.state.run.delivery.budget.lent_bytes == 200


def test_asked_for_again_it_is_decoded_again_only_after_it_had_time_to_arrive():
    job = Job()
    first = job.ask(0, 0)
    assert job.ask(0, 0) is first
    job.now = 60.0
    assert not set(serials(first)) & set(serials(job.ask(0, 0)))


def test_what_a_worker_that_ends_had_is_decoded_by_the_others():
    job = Job()
    job.work()
    delivery = job.coordinator.state.run.delivery
    before = delivery.budget.held_bytes
    job.tell(b"w0", WorkerBye())
    assert delivery.budget.held_bytes < before
    job.work()
    assert delivery.budget.held_bytes == before
    assert {p.payload.run.worker for p in delivery.budget._held.values()} == {b"w1"}
    assert not job.freed  # there is nobody to tell


def announced(job, count=4):
    """Return a run of so many payloads of 100 bytes, announced by the first worker."""
    shared = job.coordinator.state.shared
    run = shared.announce(b"w0", PayloadHandle(9, 1000, 0, 0, 100 * count))
    return shared, [run.payload(100 * n, 100) for n in range(count)]


def test_a_run_is_freed_with_the_last_of_its_payloads_and_what_lies_idle_counts():
    job = Job()
    shared, (first, second, third, last) = announced(job)
    budget = job.coordinator.state.run.delivery.budget
    budget.limit_bytes = budget.held_bytes + budget.reserved_bytes + 300
    for each, idle in ((second, 100), (first, 200), (first, 200), (last, 300)):
        assert budget.room_bytes >= 100
        each.free()
        assert shared.idle_bytes == idle
        assert not shared.take_freed(b"w0")
    assert budget.room_bytes < 100
    third.run.readers.update((b"r", b"s"))
    third.free()
    assert shared.idle_bytes == 0
    assert budget.room_bytes >= 100
    assert shared.take_freed(b"w0") == (FreeSlots((1000,), (b"r", b"s")),)


def test_what_lies_idle_in_a_worker_that_is_gone_counts_until_its_ranks_have_let_go():
    shared, payloads = announced(Job())
    payloads[0].free()
    shared.forget_worker(b"w0")
    for each in payloads[1:]:
        each.free()
    assert shared.idle_bytes == 0
    assert not shared.take_freed(b"w0")


def test_a_run_with_no_payload_is_freed():
    job = Job()
    job.work()
    job.tell(b"w0", DecodeDone(1, (), Handles((PayloadHandle(9, 77, 0, 0, 5),), (), (), ())))
    assert job.freed == [(b"w0", FreeSlots((77,), ()))]


def test_a_rank_that_was_sent_one_payload_of_a_run_is_named_when_all_are_freed():
    job = Job(in_run=100)
    one, other = job.ask(0, 0), job.ask(0, 1)
    shared_runs = {h.serial for h in one.handles.runs} & {h.serial for h in other.handles.runs}
    job.tell(b"r", Ack(0, 0, 0, 0))
    assert not shared_runs & set(job.freed_serials())
    job.tell(b"r", Ack(0, 0, 0, 1))
    for step in range(1, COUNT // 4):
        for microbatch in range(2):
            job.ask(step, microbatch)
            job.tell(b"r", Ack(0, 0, step, microbatch))
    named = {message.readers for _, message in job.freed for _ in message.serials}
    assert named == {(b"r",)}


def test_payloads_needed_last_are_dropped_and_freed_where_memory_is_short():
    job = Job(buffer_bytes=400)
    for step in range(COUNT // 4):
        for microbatch in range(2):
            job.ask(step, microbatch)
            budget = job.coordinator.state.run.delivery.budget
            assert budget.held_bytes + budget.lent_bytes <= 400
            job.tell(b"r", Ack(0, 0, step, microbatch))
    assert job.freed_serials() == list(range(1, job.serials + 1))


def test_a_lent_payload_counts_once():
    job = Job()
    job.ask(0, 0)
    budget = job.coordinator.state.run.delivery.budget
    held = sum(sample.nbytes for sample in budget._held.values())
    assert (budget.held_bytes, budget.lent_bytes) == (held, 200)
    job.tell(b"r", Ack(0, 0, 0, 0))
    assert budget.lent_bytes == 0
    assert budget._only_lent_bytes == 0


def test_workers_elsewhere_cannot_announce_memory():
    job = JobSpec(plan=PLAN, source={"source": "tar", "pattern": ["*"], "transform": None})
    checked = Job.__new__(Job)
    checked.__dict__.update(in_run=1, serials=0, freed=[], batches=[], leases=[], now=0.0, job=job)
    checked.coordinator = Coordinator(job, check_layout=lambda *_: "")
    checked.tell(b"w0", WorkerHello("w0", 0, "h", 0))
    checked.tell(b"w0", WorkerReady(COUNT, "f", 0))
    checked.tell(b"r", RankHello((0,), to_json(job)))
    checked.tell(b"r", StartRun(0, 0, EpochPosition(0, 0, 0, 0)))
    checked.work(most=6)
    run = checked.coordinator.state.run
    assert run is None or not run.delivery.budget.held_bytes
    assert b"w0" not in checked.coordinator.state.workers  # turned away
    assert "own memory" in checked.coordinator.state.diagnostics.last_refused[-1]


@pytest.mark.parametrize("field", ["token", "offset"])
def test_a_handle_has_no_negative_numbers(field):
    handle = structs.replace(PayloadHandle(1, 2, 3, 4, 5), **{field: -1})
    done = DecodeDone(1, (DecodedItem(0, "k", (), b"h"),), own_runs(handle))
    with pytest.raises(WireError, match=">= 0"):
        decode(encode(done), 0)
