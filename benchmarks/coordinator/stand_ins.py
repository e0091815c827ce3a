"""Workers that answer at once, and ranks that take at once; no socket, and no coordinator.

A base class: who drives a coordinator says what is done with what they send.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Message,
    PeerRejected,
    RankHello,
    RunFailed,
    StartRun,
    UnknownPeer,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed, SampleRef
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    Batch,
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)

# Microbatches that a rank asks for ahead.
PREFETCH = 2
# Nobody connects to it: what is measured is the balancer.
ADDRESS = "tcp://127.0.0.1:9"


@dataclass(slots=True)
class RankStandIn:
    """A trainer process: it takes microbatches at once, and asks for the one after the next.

    arrived: those that it has been sent; it has taken those before `next`.
    """

    number: int
    microbatches: int
    asked: int = 0
    next: int = 0
    arrived: set[int] = field(default_factory=set)

    def place(self, nth: int) -> tuple[int, int]:
        """Return the step and the microbatch of its nth microbatch."""
        return divmod(nth, self.microbatches)

    def open_requests(self) -> list[RequestBatch]:
        """Return the requests that are not answered, which a rank repeats every second."""
        waited = (nth for nth in range(self.asked) if nth not in self.arrived)
        return [RequestBatch(0, self.number, *self.place(nth)) for nth in waited]

    def ask(self) -> RequestBatch:
        """Return the request for the next microbatch that it has not asked for."""
        step, microbatch = self.place(self.asked)
        self.asked += 1
        return RequestBatch(0, self.number, step, microbatch)


@dataclass
class StandIns(ABC):
    """All peers of a coordinator, and the samples that ranks were `delivered`.

    microbatch: its samples, where a rank has so many of a step. payload, header: each sample's.
    is_direct: payloads are announced for ranks to pull. key: the workers' public key for pulls.
    """

    ranks: int
    workers: int
    steps: int
    samples_per_step: int = 1920
    microbatch: int = 16
    payload: bytes | bytearray = bytes(1024)
    header: bytes = b""
    is_direct: bool = False
    key: bytes = b""
    delivered: int = 0

    def __post_init__(self) -> None:
        share = -(-self.samples_per_step // self.ranks)
        accumulate = max(1, share // self.microbatch)
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
        self.rank_stand_ins = {
            b"r%d" % number: RankStandIn(number, accumulate) for number in range(self.ranks)
        }
        self.worker_names = [b"w%d" % number for number in range(self.workers)]
        self.ready: set[bytes] = set()
        self._serial = 0

    @abstractmethod
    def post(self, peer: bytes, message: Message, *payloads: bytes | bytearray) -> None:
        """Send a peer's message to the coordinator."""

    def greet(self) -> None:
        """Introduce all peers."""
        text = to_json(self.job)
        for peer, rank in self.rank_stand_ins.items():
            self.post(peer, RankHello((rank.number,), text))
        for peer in self.worker_names:
            address = ADDRESS if self.is_direct else ""
            self.post(peer, WorkerHello(peer.decode(), 0, "host", 0, address=address, key=self.key))

    def start(self) -> None:
        """Start the run at all ranks."""
        for peer in self.rank_stand_ins:
            self.post(peer, StartRun(0, 0, EpochPosition(0, 0, 0, 0, "")))

    def ask(self) -> None:
        """Have all ranks ask for their first microbatches."""
        for peer, rank in self.rank_stand_ins.items():
            for _ in range(PREFETCH):
                self.post(peer, rank.ask())

    def answer(self, peer: bytes, message: Message) -> None:
        """Do what a message asks of a peer, at once."""
        if isinstance(message, Lease):
            self._do_lease(peer, message)
        elif isinstance(message, Batch):
            self._take(peer, message)
        elif isinstance(message, Welcome):
            self.ready.add(peer)
            self.post(peer, WorkerReady(self.count, "same", message.number))
        elif isinstance(message, RunFailed | PeerRejected | UnknownPeer):
            raise RuntimeError(f"{peer!r} was sent {message}")

    def _do_lease(self, peer: bytes, lease: Lease) -> None:
        if lease.kind == "probe":
            found = tuple(
                Probed(ref.ordinal, str(ref.index), (64 + 31 * ref.index % 97,), len(self.payload))
                for ref in lease.refs
            )
            self.post(peer, ProbeDone(lease.lease, found, usual_us=0))
            return
        items = tuple(self._decoded(ref) for ref in lease.refs)
        payloads = () if self.is_direct else (self.payload,) * len(items)
        self.post(peer, DecodeDone(lease.lease, items, usual_us=0), *payloads)

    def _decoded(self, ref: SampleRef) -> DecodedItem:
        self._serial += self.is_direct
        serial, nbytes = (self._serial, len(self.payload)) if self.is_direct else (0, 0)
        return DecodedItem(ref.ordinal, str(ref.index), (), self.header, serial, nbytes)

    def _take(self, peer: bytes, batch: Batch) -> None:
        if self.is_direct and not all(item.serial for item in batch.items):
            raise RuntimeError("a payload came inline that was announced to be pulled")
        rank = self.rank_stand_ins[peer]
        nth = batch.step * rank.microbatches + batch.microbatch
        if nth in rank.arrived:
            return  # it was asked for again while it was on its way
        rank.arrived.add(nth)
        self.delivered += len(batch.items)
        # In order: an acknowledgement is of all before it, too.
        while rank.next in rank.arrived:
            self.post(peer, Ack(0, batch.rank, *rank.place(rank.next)))
            rank.next += 1
            if rank.place(rank.asked)[0] < self.steps:
                self.post(peer, rank.ask())


def heartbeat(peer: bytes, nth: int) -> WorkerHeartbeat:
    """Return a worker's nth report: never of the sample before, so that it makes progress."""
    return WorkerHeartbeat(peer.decode(), 0, lease=1, ordinal=nth)
