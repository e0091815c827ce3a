"""Costs that are known over the epochs of a job: what is kept, and when all of it is forgotten."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers.admission import DataFacts
from counterpoise.balancer.coordinator.run import known_costs
from counterpoise.balancer.coordinator.run.known_costs import CostMemory, KnownCosts
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.options import Mode
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    EpochEnd,
    Message,
    RankBye,
    RankHello,
    SampleFailed,
    StartRun,
    Welcome,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
)
from counterpoise.balancer.protocol.parts import KNOWN_BEFORE, DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    Batch,
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)
from tests.simulation.balancer import NoMemory

COUNT = 24
PLAN = PlanConfig(
    ranks=1, samples_per_step=8, accumulate="auto", resources=("tokens", "tiles"),
    budgets=(90, None), grouping="isf", partition="greedy", oversize="alone", seed=5,
)  # fmt: skip
JOB = JobSpec(plan=PLAN, on_error="skip")
START = EpochPosition(0, 0, 0, 0, "")


def cost(index: int) -> tuple[int, int]:
    """Return the costs of a sample; those of number 7 are over budget."""
    return (100 if index == 7 else index % 50 + 1), 2 * index


class Epochs:
    """A coordinator whose worker and rank do at once what they are to do; counts what is asked."""

    def __init__(
        self,
        job: JobSpec = JOB,
        fixed: bool = True,
        count: int = COUNT,
        **options: object,
    ) -> None:
        self.job = job
        self.coordinator = Coordinator(job if fixed else None, **options)  # type: ignore[arg-type]
        self._inbox = deque[tuple[bytes, Message, tuple[bytes, ...]]]()
        self.measured: list[int] = []
        self.given: list[tuple[int, tuple[str, ...]]] = []
        self.failing = frozenset[int]()
        self.decodes_first = self.is_over = False
        self.count, self.fingerprint = count, "f"
        self.run = -1
        self.join()

    def join(self) -> None:
        """Let a worker and a rank join."""
        self.tell(b"r", RankHello((0,), to_json(self.job)))
        self.start_worker()

    def start_worker(self, incarnation: int = 0) -> None:
        """Let a worker process join; its data set is the one of now."""
        self.tell(b"w%d" % incarnation, WorkerHello("w", incarnation, "host", 0))

    def epoch(self, holes: tuple[int, ...] = ()) -> list[int]:
        """Run an epoch, with these from a ledger; return the indexes that were measured for it."""
        self.measured, self.is_over, self.run = [], False, self.run + 1
        self.tell(b"r", StartRun(self.run, self.run, START, holes=holes))
        step = 0
        while not self.is_over:
            before = len(self.given)
            self.tell(b"r", RequestBatch(self.run, 0, step, 0))
            assert self.is_over or len(self.given) > before, "nothing has come"
            step += 1
        return sorted(self.measured)

    def tell(self, peer: bytes, message: Message, payloads: tuple[bytes, ...] = ()) -> None:
        """Send the coordinator a message, and answer all that it says."""
        self._inbox.append((peer, message, payloads))
        if len(self._inbox) > 1:
            return  # it is told in its turn
        while self._inbox:
            for effect in self.coordinator.handle(*self._inbox[0]):
                self._answer(effect.peer, effect.message)
            self._inbox.popleft()

    def _answer(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Welcome):
            ready = WorkerReady(self.count, self.fingerprint, message.number)
            self.tell(peer, ready)
        elif isinstance(message, Lease):
            for ref in message.refs:
                self._work(peer, message, ref.ordinal, ref.index)
        elif isinstance(message, EpochEnd):
            self.is_over = True
        elif isinstance(message, Batch):
            keys = tuple(item.key for item in message.items)
            holes = tuple(f"{hole.key}: {hole.reason}" for hole in message.holes)
            self.given.append((message.step, keys + holes))
            self.tell(b"r", Ack(self.run, 0, message.step, message.microbatch))
            if message.microbatch + 1 < message.microbatches:
                self.tell(b"r", RequestBatch(self.run, 0, message.step, message.microbatch + 1))

    def _work(self, peer: bytes, lease: Lease, ordinal: int, index: int) -> None:
        key = f"k{index}"
        if lease.kind == "probe":
            self.measured.append(index)
        if index in self.failing:
            self.tell(peer, SampleFailed(lease.lease, ordinal, key, "broken", False))
        elif lease.kind == "probe" and not self.decodes_first:
            probed = Probed(ordinal, key, cost(index), 10)
            self.tell(peer, ProbeDone(lease.lease, (probed,)))
        else:
            item = DecodedItem(ordinal, key, cost(index), b"", 0, 0)
            self.tell(peer, DecodeDone(lease.lease, (item,)), (b"%d" % index,))


# Number 7 is over budget: its name may be needed before it is decoded.
AGAIN = [7]
ALL = list(range(COUNT))


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
def test_samples_are_measured_once_a_job(mode: Mode) -> None:
    job = replace(JOB, plan=replace(PLAN, mode=mode))
    epochs, others = Epochs(job), Epochs(job)
    others.coordinator.costs = NoMemory()
    assert [epochs.epoch() for _ in range(4)] == [ALL, AGAIN, AGAIN, AGAIN]
    assert [others.epoch() for _ in range(4)] == [ALL] * 4
    assert epochs.given == others.given


def test_what_was_not_measured_yet_is_measured_in_a_later_epoch() -> None:
    epochs = Epochs(replace(JOB, buffer_bytes=1024), count=4 * COUNT)
    epochs.run = 0
    epochs.tell(b"r", StartRun(0, 0, START))
    epochs.tell(b"r", RequestBatch(0, 0, 0, 0))
    known = set(epochs.measured) - {7}
    assert 8 <= len(known) < 2 * COUNT
    assert epochs.epoch() == sorted(set(range(4 * COUNT)) - known)
    assert epochs.epoch() == AGAIN


def test_holes_of_a_ledger_have_their_names() -> None:
    """They are not decoded, so that the name does not come with the decoded sample."""
    epochs = Epochs()
    epochs.epoch()
    first = len(epochs.given)
    measured = epochs.epoch(holes=(3, COUNT + 1))
    index = int(epochs.coordinator.run.feed.order[3])
    holes = [each for _, keys in epochs.given[first:] for each in keys if ": " in each]
    assert holes == [f"k{index}: {KNOWN_BEFORE}"]
    assert measured == sorted({*AGAIN, index})


def _ended(epochs: Epochs) -> None:
    epochs.tell(b"r", WorkersEnded(("w",)))
    epochs.start_worker(1)


def _one_of_two_ended(epochs: Epochs) -> None:
    epochs.tell(b"v", WorkerHello("v", 0, "host", 1))
    epochs.tell(b"r", WorkersEnded(("w",)))


def _another_data_set(fingerprint: str, count: int) -> Callable[[Epochs], None]:
    def change(epochs: Epochs) -> None:
        epochs.coordinator.facts = DataFacts(count, fingerprint, "w")
        epochs.count = count

    return change


def _reopened(epochs: Epochs) -> None:
    epochs.tell(b"r", RankBye())
    epochs.join()


def _another_job(epochs: Epochs) -> None:
    epochs.tell(b"r", RankBye())
    epochs.job = replace(JOB, plan=replace(PLAN, seed=6))
    epochs.join()


def _rubbish(epochs: Epochs) -> None:
    """Let a worker answer samples that it has not been leased, until it is turned away."""
    epochs.tell(b"v", WorkerHello("v", 0, "host", 1))
    epochs.run += 1
    epochs.tell(b"r", StartRun(epochs.run, epochs.run, START))
    (last,) = {epochs.coordinator.run.leases.last}
    for ordinal in range(100, 103):
        epochs.tell(b"v", ProbeDone(last + 5, (Probed(ordinal, "x", (1, 1), 1),)))
    assert b"v" not in epochs.coordinator.workers


def _restarted(epochs: Epochs) -> None:
    epochs.coordinator = Coordinator(JOB, incarnation=1)
    epochs.join()


@pytest.mark.parametrize(
    ("happens", "fixed"),
    [
        (_ended, True),
        (_one_of_two_ended, True),
        (_another_data_set("other", COUNT), True),
        (_another_data_set("f", COUNT + 1), True),
        (_reopened, False),
        (_another_job, False),
        (_rubbish, True),
        (_restarted, True),
    ],
    ids=[
        "all workers were ended", "one of two workers was ended", "another fingerprint",
        "another number of samples", "the source was opened again", "another job",
        "a worker was turned away", "the balancer was restarted",
    ],
)  # fmt: skip
def test_all_is_measured_again_once(happens: Callable[[Epochs], None], fixed: bool) -> None:
    epochs = Epochs(fixed=fixed)
    assert (epochs.epoch(), epochs.epoch()) == (ALL, AGAIN)
    happens(epochs)
    everything = list(range(epochs.count))
    assert (epochs.epoch(), epochs.epoch()) == (everything, AGAIN)


def test_a_worker_that_died_and_came_back_changes_nothing() -> None:
    epochs = Epochs()
    assert epochs.epoch() == ALL
    epochs.start_worker(1)
    assert list(epochs.coordinator.workers) == [b"w1"]
    assert epochs.epoch() == AGAIN


def test_samples_that_are_decoded_to_be_measured_are_in_every_epoch() -> None:
    epochs = Epochs()
    epochs.decodes_first = True
    assert [epochs.epoch() for _ in range(3)] == [ALL] * 3


def test_a_sample_that_failed_is_tried_again() -> None:
    epochs = Epochs()
    epochs.failing = frozenset({3})
    assert (epochs.epoch(), epochs.epoch()) == (ALL, [3, 7])
    epochs.failing = frozenset()
    assert epochs.epoch() == [3, 7]
    epochs.failing = frozenset({4})  # known by now: it fails to be decoded
    assert epochs.epoch() == AGAIN
    assert epochs.epoch() == [4, 7]


def test_a_refused_sample_is_named_in_every_epoch() -> None:
    epochs = Epochs(replace(JOB, plan=replace(PLAN, oversize="refuse")))
    epochs.epoch()
    epochs.epoch()
    holes = [name for _, names in epochs.given for name in names if ":" in name]
    assert holes == ["k7: over budget, and oversize is 'refuse'"] * 2


def test_workers_elsewhere_are_asked_in_every_epoch() -> None:
    job = replace(JOB, source={"pattern": "x"})
    epochs = Epochs(job, check_layout=lambda *_: "")
    assert [epochs.epoch() for _ in range(2)] == [ALL] * 2


@pytest.mark.parametrize("mode", ["exact", "epoch"])
def test_costs_that_take_too_much_memory_are_kept_for_an_epoch_at_most(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_costs, "MOST_BYTES", COUNT * 24 - 1)
    epochs = Epochs(replace(JOB, plan=replace(PLAN, mode=mode)))
    assert [epochs.epoch() for _ in range(2)] == [ALL] * 2


def test_a_hundred_million_samples_take_no_memory_where_they_are_not_planned_together() -> None:
    known = CostMemory().known_to(JOB, 10**8, "f", whole=False, believed=True)
    known.note([5], [(1, 2)], np.array([3]))
    assert known.are_known(np.array([5])).tolist() == [False]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_noted_is_known(seed: int) -> None:
    draw = np.random.default_rng(seed)
    known, noted = KnownCosts(50, (1 << 39, None)), dict[int, tuple[list[int], int]]()
    for _ in range(10):
        indexes = draw.choice(50, size=int(draw.integers(1, 12)), replace=False)
        costs = draw.integers(0, 1 << 40, (len(indexes), 2))
        nbytes = draw.integers(0, 1 << 33, len(indexes))
        known.note(indexes.tolist(), costs.tolist(), nbytes)
        rows = zip(indexes.tolist(), costs.tolist(), nbytes.tolist(), strict=True)
        noted |= {index: (row, size) for index, row, size in rows if row[0] <= 1 << 39}
        if draw.random() < 0.3:
            known.note_failed([int(indexes[0])])
            known.forget_failed()
            noted.pop(int(indexes[0]), None)
        every = draw.permutation(50)
        assert known.are_known(every).tolist() == [index in noted for index in every.tolist()]
        for index, (row, size) in noted.items():
            assert known.measured(np.array([index])) == ([tuple(row)], [size])
            assert known.costs(np.array([index])).tolist() == [row]
