"""A coordinator driven without sockets: workers that answer at once, ranks that take at once.

Time is simulated and passes with the messages, so that heartbeats, pings and ticks come as often
for each message as on a busy balancer. Only what the coordinator itself does is timed, planning
apart from the rest.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Planned, Window
from counterpoise.balancer.protocol.messages import Message, Ping

from .stand_ins import StandIns, heartbeat

# Simulated time between two messages; workers report and ranks ask once a second.
MESSAGE_S = 50e-6
REPORT_S = 1.0

Result = TypeVar("Result")


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
        return self._timed(self._planner.plan, window)

    def _timed(self, plan: Callable[[Window], Result], window: Window) -> Result:
        began = time.thread_time()
        try:
            return plan(window)
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


@dataclass
class Driven(StandIns):
    """A coordinator with `ranks` and `workers`, and the messages on their way to it.

    `joining` and `running` are what the coordinator spent before and after the run started, `kinds`
    the messages that it handled.
    """

    joining: Spent = field(default_factory=Spent)
    running: Spent = field(default_factory=Spent)
    kinds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spent = self.joining
        self.coordinator = Coordinator(
            plan_with=lambda config: TimedPlanner(config, lambda: self.spent),
            heartbeat_timeout_s=10.0,
        )
        self.now = 0.0
        self._inbox: deque[tuple[bytes, Message, tuple[bytes | bytearray, ...]]] = deque()
        self._reported = 0

    def run(self) -> None:
        """Join all ranks and workers, and run an epoch to its end."""
        self._join()
        self.spent = self.running
        self.ask()
        while self.delivered < self.count:
            self._report()
            self._turn()

    def post(self, peer: bytes, message: Message, *payloads: bytes | bytearray) -> None:
        """Send a peer's message to the coordinator."""
        self._inbox.append((peer, message, payloads))

    def _join(self) -> None:
        self.greet()
        while self._inbox:
            self._turn()
        self.start()
        # What the workers do from here on belongs to the run.
        for _ in range(self.ranks):
            self._turn()

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
            self.answer(effect.peer, effect.message)

    def _report(self) -> None:
        """Post the workers' heartbeats and the ranks' pings that are due, spread over a second."""
        peers = [*self.worker_names, *self.rank_stand_ins]
        while self._reported < self.now / REPORT_S * len(peers):
            peer = peers[self._reported % len(peers)]
            is_rank = peer in self.rank_stand_ins
            self.post(peer, Ping(1) if is_rank else heartbeat(peer, self._reported))
            self._reported += 1
