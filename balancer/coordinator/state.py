"""The coordinator's state: the job, its run, the peers, and the messages to send.

Everything here is plain data that handlers change and reports read. A peer's protocol state (one of
`protocol/transitions.py`) is in `peer_states`, which only `apply` writes, from the table.
"""

import math
from collections import deque
from collections.abc import Callable

from msgspec import structs

from ..job.effects import Diagnostics, Send
from ..planning.planner import make_planner
from ..planning.problem.config import PlanConfig
from ..protocol.job_spec import JobSpec
from ..protocol.messages import Message, PeerRejected, RankHello, RunFailed
from ..protocol.parts import PayloadServer
from ..protocol.payload_messages import Lease, PayloadsFreed
from ..protocol.transitions import ABSENT, COORDINATOR, W_READY, Event, Outcome, State
from .delivery.sample import WorkerPayloads
from .peers.admission import DataFacts
from .peers.records import MakeCredentials, RankPeer, WorkerPeer, WorkerPool
from .peers.requests import LabelTotals, PendingRequests
from .peers.sharers import Sharers
from .run.epoch import EpochRun, LayoutCheck
from .run.known_costs import CostMemory
from .run.planning_feed import WindowPlanner

# Changes of peers that are kept until the server has logged them.
MAX_CHANGES = 1024
Change = tuple[bytes, State, str, State]
# A rank whose admission was postponed waits no more after one of these: it leaves, or is gone.
_LAST_WORDS = ("RankBye", Event.UNREACHABLE)
HEARTBEAT_TIMEOUT_S = 10.0
# Revoking this lease has no effect: a message to see whether a worker can be reached.
NO_LEASE = 0
# Characters of why a worker was refused or lost.
MAX_REASON = 300
# A worker that has sent this much rubbish is turned away.
MAX_RUBBISH = 3
# Characters of the last one's name and reason that ranks are told.
MAX_NAME, MAX_REFUSAL = 200, 600
# Incarnations are moments, a millisecond apart: more leases than a balancer can grant in that time.
NUMBERS_PER_INCARNATION = 1 << 22


class CoordinatorState:
    """The coordinator's data, below the methods for the table's actions: see machine.py."""

    def __init__(
        self,
        job: JobSpec | None = None,
        plan_with: Callable[[PlanConfig], WindowPlanner] = make_planner,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
        incarnation: int = 0,
        check_layout: LayoutCheck | None = None,
        make_credentials: MakeCredentials | None = None,
    ) -> None:
        """`job` is given where the balancer is started for it; else the first rank brings it.

        A worker that sends nothing for `heartbeat_timeout_s` is taken to be dead: infinity where a
        supervisor reports at once that one died (a call that holds Python's lock for long would
        be done again elsewhere otherwise). `incarnation` must differ from that of every balancer
        before at this address: it separates their lease numbers. `check_layout` finds samples of
        workers on other hosts that no rank could read; with it they are doubted in other ways, too.
        With `make_credentials` ranks may pull payloads from workers that listen for them.
        """
        self.check_layout = check_layout
        self.job = job
        self.job_is_fixed = job is not None
        self.plan_with = plan_with
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.facts = DataFacts()
        # Which worker was refused last, and why; "" once one was accepted.
        self.refused = ""
        self.run: EpochRun | None = None
        self.failure: RunFailed | None = None
        self.peer_states: dict[bytes, State] = {}
        # What peers have done, for the log: peer, state before, event, state after.
        self.changes: deque[Change] = deque(maxlen=MAX_CHANGES)
        self.workers: dict[bytes, WorkerPeer] = {}
        self.ranks: dict[bytes, RankPeer] = {}
        # Ranks in whose way others are, until it is known whether those are still here; since when.
        self.postponed: dict[bytes, tuple[RankHello, float]] = {}
        # Ranks that said goodbye, and are answered when no other needs this balancer's run.
        self.leaving: set[bytes] = set()
        self.sharers, self.requests, self.labels = Sharers(), PendingRequests(), LabelTotals()
        self.pool, self.kept, self.costs = WorkerPool(), WorkerPayloads(), CostMemory()
        # Since when ranks have started one run at different positions.
        self.apart_since = math.inf
        # Since when what would end the run, in time, is so.
        self.since: dict[str, float] = {}
        # Leases and welcomes of different runs, jobs and incarnations never have the same number.
        self.last_lease = incarnation * NUMBERS_PER_INCARNATION
        self.last_welcome = self.last_lease - (job is None)
        # Ranks know a worker whose payloads they pull by a token.
        self.make_credentials, self.last_token = make_credentials, self.last_lease
        self.diagnostics = Diagnostics()
        self.dropped = 0
        self.now = 0.0
        self._outbox: list[Send] = []
        actions = {row.action for row in COORDINATOR.values()}
        self.handlers: dict[str, Callable[..., Outcome | None]]
        # Each is called with the peer and the message; None is the only outcome of its row.
        self.handlers = {action: getattr(self, action.replace(" ", "_")) for action in actions}

    # --- the table

    def apply(self, peer: bytes, event: str, content: object = None) -> bool:
        """Apply an event to a peer, by the table; return False if there is no row for it."""
        if event in _LAST_WORDS:
            self.postponed.pop(peer, None)
        before = self.state_of(peer)
        row = COORDINATOR.get((before, event))
        if row is None:
            return False
        outcome = self.handlers[row.action](peer, content) or Outcome.DONE
        if outcome is Outcome.OUTDATED:
            self.dropped += 1
        after = row.after[outcome]
        if after == ABSENT:
            self.peer_states.pop(peer, None)
        else:
            self.peer_states[peer] = after
        if after != before:
            self.changes.append((peer, before, event, after))
            self.update_worker(peer)
        return True

    # --- the peers

    def state_of(self, peer: bytes) -> State:
        """Return a peer's protocol state."""
        return self.peer_states.get(peer, ABSENT)

    def add_worker(self, worker: WorkerPeer) -> None:
        """Record a worker process that has said hello; ranks may pull from one with an address."""
        self.workers[worker.peer] = worker
        self.pool.add(worker)
        hello = worker.hello
        if not hello.address or self.make_credentials is None:
            return
        found = self.make_credentials(hello.key)
        if found is None:
            worker.why_inline = "the balancer has keys, and this worker would serve without"
            return
        self.last_token += 1
        worker.serves = PayloadServer(self.last_token, hello.address, hello.key, *found)

    def remove_worker(self, peer: bytes) -> WorkerPeer | None:
        """Forget a worker process and return it, None if it is not known."""
        worker = self.workers.pop(peer, None)
        if worker is not None:
            self.pool.remove(worker)
            self.kept.kept.pop(peer, None)  # it is gone, or forgets them when it comes back
        return worker

    def update_worker(self, peer: bytes) -> None:
        """Bring the pool up to date after a change of a worker, or of its state."""
        worker = self.workers.get(peer)
        is_ready = self.state_of(peer) == W_READY
        may_work = worker is not None and not (worker.unresponsive or worker.leaving)
        self.pool.update(peer, is_ready and may_work)

    def set_unresponsive(self, worker: WorkerPeer, value: bool) -> None:
        """Record whether a worker gets no more work before it shows a result."""
        if worker.unresponsive != value:
            worker.unresponsive = value
            self.update_worker(worker.peer)

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that are absent while others have started a later run."""
        run = self.run
        if run is None or all(rank.run <= run.number for rank in self.ranks.values()):
            return ()
        return self.sharers.absent(run.job.plan.ranks)

    @property
    def has_ready_worker(self) -> bool:
        """Return whether a worker has the source open."""
        return any(self.state_of(peer) == W_READY for peer in self.workers)

    # --- the job

    @property
    def is_ready(self) -> bool:
        """Return whether a run can start: a worker has said how many samples there are."""
        return bool(self.facts.fingerprint)

    def samples_in_use(self) -> set[int]:
        """Return the numbers of samples of the data that ranks go on in; none where any will do."""
        found = {rank.started.samples for rank in self.ranks.values() if rank.started} - {-1}
        return found | ({self.facts.count} if self.is_ready and self.is_served else set())

    @property
    def is_served(self) -> bool:
        """Return whether a rank has had a part of its run."""
        return any(rank.was_served for rank in self.ranks.values())

    # --- what is sent

    def refuse(self, worker: WorkerPeer, reason: str) -> None:
        """Tell a worker that it cannot take part, and remember it for those who wait."""
        self.send(worker.peer, PeerRejected(reason))
        name = worker.hello.name
        self.diagnostics.turned_away += 1
        text = f"{name:.{MAX_REASON}}: {reason:.{MAX_REASON}}"
        self.diagnostics.last_refused.append(text)
        self.refused = f"worker {name:.{MAX_NAME}} was refused: {reason:.{MAX_REFUSAL}}"

    def send(self, peer: bytes, message: Message, payloads: tuple[object, ...] = ()) -> None:
        """Put a message into the outbox."""
        self._outbox.append(Send(peer, message, payloads))
        known = self.ranks.get(peer) or self.workers.get(peer)
        if known is not None:
            known.sent_at = self.now

    def take_outbox(self, may_wait: bool = False) -> list[Send]:
        """Return the messages to send, and forget them.

        What workers may forget travels with leases. With `may_wait` a worker that has leases is
        told with its next one, or later: it is at work, and a message costs as much as several
        samples.
        """
        # Leases first: what travels with them needs no message of its own.
        for place, effect in enumerate(self._outbox):
            freed = self.kept.freed
            if isinstance(effect.message, Lease) and effect.peer in freed:
                lease = structs.replace(effect.message, freed=tuple(freed.pop(effect.peer)))
                self._outbox[place] = Send(effect.peer, lease)
        run = self.run
        for worker in list(self.kept.freed):
            if not (may_wait and run is not None and run.leases.count(worker)):
                self.send(worker, PayloadsFreed(tuple(self.kept.freed.pop(worker))))
        sends, self._outbox = self._outbox, []
        return sends
