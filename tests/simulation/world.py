"""The settings and the result of a simulation, and what all its processes share."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from counterpoise.balancer.coordinator.run.planning_feed import WindowPlanner
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.protocol.messages import Message
from counterpoise.balancer.protocol.parts import Weights
from counterpoise.balancer.transport.wire import decode, encode
from tests.simulation.faults import Fault
from tests.simulation.rank import BEGINNING, SimulatedLedger
from tests.simulation.transport.network import SimulatedNetwork
from tests.simulation.transport.pulls import SimulatedPullServer

Cost = Callable[[int], tuple[int, ...]]
Given = tuple[int, int, tuple[str, ...], tuple[bytes, ...]]
Details = tuple[Weights, tuple[str, ...], SimulatedLedger]
Receive = Callable[[Message, tuple[object, ...]], None]
# One message in this many goes through the wire format and back.
WIRED_EVERY = 16
# How much longer work takes while a process is slow.
SLOW = 30.0
TRACED = 40


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of a simulation: sizes, delays in seconds, chances of faults.

    broken: indexes that cannot be probed; unreadable: indexes that probe but do not decode;
    deadly: indexes whose decoding kills the worker process. crashes: (time, worker) at which a
    worker process dies; it is back `restart_s` later; hangs: those at which one works no more but
    lives. fixed_job: the balancer knows the job. open_s: what opening the source takes on average.
    probed_bytes: the payload size that a probe reports. leaves_at: the step at which the trainer
    leaves its first epoch for the next one, if any. sharers: how many processes share each entry of
    `processes`; all but the first start `late_s` after it. deaths: (time, process) at which one
    process of the trainer dies alone, and stays dead. pulls: ranks pull payloads from workers.
    keeps_costs: the balancer keeps costs from one epoch to the next.
    """

    job: JobSpec
    count: int
    cost: Cost
    workers: int = 2
    processes: tuple[tuple[int, ...], ...] = ((0,),)
    delay_s: float = 0.01
    work_s: float = 0.05
    train_s: float = 0.02
    prefetch: int = 2
    open_s: float = 0.0
    payload_bytes: int = 100
    probed_bytes: int = 100
    broken: frozenset[int] = frozenset()
    unreadable: frozenset[int] = frozenset()
    deadly: frozenset[int] = frozenset()
    crashes: tuple[tuple[float, int], ...] = ()
    restart_s: float = 1.0
    hangs: tuple[tuple[float, int], ...] = ()
    decode_first: bool = False
    duplicate: float = 0.0
    epochs: int = 1
    leaves_at: int | None = None
    sharers: int = 1
    late_s: float = 0.0
    deaths: tuple[tuple[float, str], ...] = ()
    start: SimulatedLedger = BEGINNING
    # Ten times what any job here takes: one that never ends is reported after seconds.
    limit_s: float = 200.0
    heartbeat_timeout_s: float = 10.0
    fixed_job: bool = True
    pulls: bool = False
    keeps_costs: bool = True
    faults: tuple[Fault, ...] = ()
    plan_with: Callable[[PlanConfig], WindowPlanner] = make_planner


@dataclass(slots=True)
class SimulationResult:
    """The result of a simulation: per rank the delivered (step, microbatch, keys, payloads).

    What was delivered to the second of those that share rank r of R is at R + r, and so on.
    details: beside each delivered microbatch its weights, its holes, and the ledger after it.
    label_totals: by (number as in delivered, epoch, step), where ranks count label tokens.
    probed: samples measured by workers, without those whose costs were kept. leased: samples in
    leases to decode. expired: leases that the last balancer has seen expire.
    """

    delivered: dict[int, list[Given]] = field(default_factory=dict)
    details: dict[int, list[Details]] = field(default_factory=dict)
    label_totals: dict[tuple[int, int, int], int] = field(default_factory=dict)
    probed: int = 0
    leased: int = 0
    expired: int = 0
    holes: list[str] = field(default_factory=list)
    trouble: str = ""
    stuck: bool = False
    most_held: int = 0
    seconds: float = 0.0
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACED))


@dataclass(slots=True)
class World:
    """The network, clock and source of randomness; the reachable peers, and the result so far."""

    settings: ClusterSettings
    random: random.Random
    network: SimulatedNetwork
    traced: bool = False
    outcome: SimulationResult = field(default_factory=SimulationResult)
    over: bool = False
    # By address: the party that the process belongs to, and what it does with a message.
    peers: dict[bytes, tuple[str, Receive]] = field(default_factory=dict)
    # Until when a party cannot be reached, which the balancer is told.
    cut_off: dict[str, float] = field(default_factory=dict)
    # Where ranks pull payloads from the worker processes that were started, by address.
    servers: dict[str, SimulatedPullServer] = field(default_factory=dict)
    _messages: int = 0

    @property
    def now(self) -> float:
        """The time in seconds."""
        return self.network.now

    def pull_server(self, silent_until: Callable[[], float]) -> SimulatedPullServer | None:
        """Return where ranks pull from a worker process that starts, None where they do not."""
        if not self.settings.pulls:
            return None
        address = f"tcp://worker:{len(self.servers) + 1}"
        self.servers[address] = SimulatedPullServer(address, silent_until)
        return self.servers[address]

    def soon(self) -> float:
        """Draw the delay of a message."""
        return self.random.random() * 2 * self.settings.delay_s

    def trace(self, *words: object) -> None:
        """Record an event, if the simulation is traced."""
        if self.traced:
            self.outcome.trace.append(f"{self.now:8.3f} {' '.join(map(str, words))}"[:200])

    def wired(self, message: Message, payloads: int) -> Message:
        """Return the message; now and then encoded and decoded again."""
        self._messages += 1
        return message if self._messages % WIRED_EVERY else decode(encode(message), payloads)

    def fail(self, trouble: str) -> None:
        """End the simulation."""
        self.outcome.trouble = trouble
        self.over = True
