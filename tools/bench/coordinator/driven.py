"""A coordinator driven without sockets: workers that answer at once, ranks that take at once.

Time is simulated and passes with the messages, so that heartbeats, pings and ticks come as often
for each message as on a busy balancer. Only what the coordinator itself does is timed, planning
apart from the rest.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ....balancer.coordinator.machine import Coordinator
from ....balancer.planning.planner import make_planner
from ....balancer.planning.problem.balance import Balance
from ....balancer.planning.problem.config import PlanConfig, Planned, Window
from ....balancer.protocol.job_spec import JobSpec, to_json
from ....balancer.protocol.messages import (
    Ack,
    Batch,
    DecodedItem,
    DecodeDone,
    EpochPosition,
    Lease,
    Message,
    PeerRejected,
    Ping,
    Probed,
    ProbeDone,
    RankHello,
    RequestBatch,
    RunFailed,
    StartRun,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)

# Samples of a microbatch, where a rank has so many of a step.
MICROBATCH = 16
# Simulated time between two messages; workers report and ranks ask once a second.
MESSAGE_S = 50e-6
REPORT_S = 1.0
# Microbatches that a rank asks for ahead.
PREFETCH = 2
PAYLOAD = bytes(1024)


class TimedPlanner:
    """A planner, and the CPU time that it took."""

    def __init__(self, config: PlanConfig, spent: Callable[[], "Spent"]) -> None:
        self._planner = make_planner(config)
        self._spent = spent

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned:
        """Return the steps of a window."""
        began = time.thread_time()
        try:
            return self._planner.plan(window)
        finally:
            self._spent().planning_s += time.thread_time() - began


@dataclass(slots=True)
class Spent:
    """CPU seconds in the coordinator (planning is part of them), and the messages it handled."""

    handling_s: float = 0.0
    planning_s: float = 0.0
    messages: int = 0

    @property
    def own_s(self) -> float:
        """CPU seconds without planning."""
        return self.handling_s - self.planning_s


@dataclass(slots=True)
class RankStandIn:
    """A trainer process: it takes each microbatch at once, and asks for the one after the next."""

    number: int
    microbatches: int
    asked: int = 0
    taken: int = 0

    def place(self, nth: int) -> tuple[int, int]:
        """Return the step and the microbatch of its nth microbatch."""
        return divmod(nth, self.microbatches)

    def ask(self) -> RequestBatch:
        """Return the request for the next microbatch that it has not asked for."""
        step, microbatch = self.place(self.asked)
        self.asked += 1
        return RequestBatch(0, self.number, step, microbatch)


@dataclass
class Driven:
    """A coordinator with `ranks` and `workers`, and the messages on their way to it.

    `joining` and `running` are what the coordinator spent before and after the run started,
    `delivered` the samples that ranks were sent, `kinds` the messages that it handled.
    """

    ranks: int
    workers: int
    steps: int
    samples_per_step: int = 1920
    joining: Spent = field(default_factory=Spent)
    running: Spent = field(default_factory=Spent)
    delivered: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.spent = self.joining
        share = -(-self.samples_per_step // self.ranks)
        accumulate = max(1, share // MICROBATCH)
        plan = PlanConfig.from_balance(
            Balance("isf", partition="greedy", accumulate=accumulate),
            ranks=self.ranks,
            resources=("tokens",),
            samples_per_step=self.samples_per_step,
            batch_size=None,
            drop_last=True,
            empty_microbatches=True,
        )
        self.count = self.steps * self.samples_per_step
        self.job = JobSpec(plan=plan, source={"pattern": "*.tar"}, buffer_bytes=1 << 33)
        self.coordinator = Coordinator(
            plan_with=lambda config: TimedPlanner(config, lambda: self.spent),
            heartbeat_timeout_s=10.0,
        )
        self.now = 0.0
        self._inbox: deque[tuple[bytes, Message, tuple[bytes, ...]]] = deque()
        self._ranks = {
            b"r%d" % number: RankStandIn(number, accumulate) for number in range(self.ranks)
        }
        self._worker_names = [b"w%d" % number for number in range(self.workers)]
        self._reported = 0

    def run(self) -> None:
        """Join all ranks and workers, and run an epoch to its end."""
        self._join()
        self.spent = self.running
        for peer, rank in self._ranks.items():
            for _ in range(PREFETCH):
                self._post(peer, rank.ask())
        while self.delivered < self.count:
            self._report()
            self._turn()

    def _join(self) -> None:
        text = to_json(self.job)
        for peer, rank in self._ranks.items():
            self._post(peer, RankHello((rank.number,), text))
        for peer in self._worker_names:
            self._post(peer, WorkerHello(peer.decode(), 0, "host", 0))
        self._drain()
        for peer in self._ranks:
            self._post(peer, StartRun(0, 0, EpochPosition(0, 0, 0, 0)))
        # What the workers do from here on belongs to the run.
        for _ in self._ranks:
            self._turn()

    def _drain(self) -> None:
        while self._inbox:
            self._turn()

    def _post(self, peer: bytes, message: Message, *payloads: bytes) -> None:
        self._inbox.append((peer, message, payloads))

    def _turn(self) -> None:
        """Do what the balancer's loop does for one message that has come."""
        if not self._inbox:
            raise RuntimeError(f"nothing is on its way, and {self.delivered} samples came")
        peer, message, payloads = self._inbox.popleft()
        self.now += MESSAGE_S
        self.spent.messages += 1
        self.kinds[type(message).__name__] += 1
        began = time.thread_time()
        sent = self.coordinator.handle(peer, message, payloads, self.now)
        if self.coordinator.next_deadline() <= self.now:
            sent += self.coordinator.tick(self.now)
        self.spent.handling_s += time.thread_time() - began
        for effect in sent:
            self._answer(effect.peer, effect.message)

    def _report(self) -> None:
        """Post the workers' heartbeats and the ranks' pings that are due, spread over a second."""
        peers = [*self._worker_names, *self._ranks]
        while self._reported < self.now / REPORT_S * len(peers):
            peer = peers[self._reported % len(peers)]
            is_rank = peer in self._ranks
            self._post(peer, Ping(1) if is_rank else _heartbeat(peer, self._reported))
            self._reported += 1

    def _answer(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Lease):
            self._do_lease(peer, message)
        elif isinstance(message, Batch):
            self._take(peer, message)
        elif isinstance(message, Welcome):
            self._post(peer, WorkerReady(self.count, "same", message.number))
        elif isinstance(message, RunFailed | PeerRejected):
            raise RuntimeError(f"{peer!r} was sent {message}")

    def _do_lease(self, peer: bytes, lease: Lease) -> None:
        if lease.kind == "probe":
            found = tuple(
                Probed(ref.ordinal, str(ref.index), (64 + 31 * ref.index % 97,), len(PAYLOAD))
                for ref in lease.refs
            )
            self._post(peer, ProbeDone(lease.lease, found, usual_us=0))
            return
        items = tuple(DecodedItem(ref.ordinal, str(ref.index), (), b"") for ref in lease.refs)
        self._post(peer, DecodeDone(lease.lease, items, usual_us=0), *[PAYLOAD] * len(items))

    def _take(self, peer: bytes, batch: Batch) -> None:
        self.delivered += len(batch.items)
        self._post(peer, Ack(0, batch.rank, batch.step, batch.microbatch))
        rank = self._ranks[peer]
        if rank.place(rank.asked)[0] < self.steps:
            self._post(peer, rank.ask())


def _heartbeat(peer: bytes, nth: int) -> WorkerHeartbeat:
    # Never the same sample twice: each reports progress.
    return WorkerHeartbeat(peer.decode(), 0, lease=1, ordinal=nth)
