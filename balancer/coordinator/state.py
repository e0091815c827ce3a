"""What the coordinator's two sides share: the job, its run, who is there, what is to be sent."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..planning.planner import make_planner
from ..planning.problem.config import PlanConfig
from ..planning.problem.shuffle import permutation
from ..protocol.clock_offset import MICROSECONDS
from ..protocol.job_spec import JobSpec
from ..protocol.messages import EpochEnd, Message, RankHello, Revoke, RunFailed
from ..protocol.transitions import COORDINATOR
from .peers import PendingRequests, RankPeer, Send, WorkerPeer, why_apart
from .run.epoch import EpochRun
from .run.planning_feed import WindowPlanner

WORKER_SILENCE_S = 10.0
# The last workers that were turned away or lost are remembered, with so much of the text.
REMEMBERED, REASON = 4, 300
# More leases than a balancer can grant in its life.
NUMBERS = 1 << 32


@dataclass(slots=True)
class Diagnostics:
    """What is written down for people who look, and decides nothing; times as in Hall.

    wall_ahead_s: what the balancer's wall clock shows, less the time that events are told with.
    expired: leases that ran out, the last at expired_at. lost: workers that died or fell silent,
    the last at lost_at. refused: messages and peers that the shell sent away.
    """

    software: str = ""
    wall_ahead_s: float = 0.0
    expired: int = 0
    expired_at: float = -math.inf
    lost: int = 0
    lost_at: float = -math.inf
    last_lost: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    refused: int = 0
    turned_away: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def clock_us(self, now: float) -> int:
        """Return what the wall clock shows, in microseconds."""
        return round((now + self.wall_ahead_s) * MICROSECONDS)

    def lose(self, name: str, now: float) -> None:
        """Write down that a worker died, or was not heard of for too long."""
        self.lost, self.lost_at = self.lost + 1, now
        self.last_lost.append(name[:REASON])

    def turn_away(self, name: str, reason: str) -> None:
        """Write down that a worker was not let in."""
        self.turned_away.append(f"{name:.{REASON}}: {reason:.{REASON}}")


class CoordinatorState:
    """The state that events change; see balancer/coordinator/machine.py."""

    def __init__(
        self,
        job: JobSpec | None = None,
        plan_with: Callable[[PlanConfig], WindowPlanner] = make_planner,
        silence_s: float = WORKER_SILENCE_S,
        incarnation: int = 0,
    ) -> None:
        """`job` is given where the balancer is started for it, else the first rank brings it.

        `silence_s` is how long a worker may say nothing before it is taken for dead: infinity
        where a supervisor says at once when one has died (a call that holds Python's lock for
        long would be done again elsewhere otherwise). `incarnation` must differ from that of every
        balancer before at this address: what belongs to one of them is told by it.
        """
        self.job = job
        self.fixed_job = job is not None
        self.plan_with = plan_with
        self.silence_s = silence_s
        self.count = 0
        self.fingerprint = ""
        self.books = Diagnostics()
        self.dropped = 0
        self.run: EpochRun | None = None
        self.trouble: RunFailed | None = None
        self._states: dict[bytes, str] = {}
        self._workers: dict[bytes, WorkerPeer] = {}
        self._ranks: dict[bytes, RankPeer] = {}
        self._knocking: dict[bytes, RankHello] = {}
        self._leaving: set[bytes] = set()
        self._apart_since = math.inf
        self._missing_since = math.inf
        self._replaced: dict[bytes, int] = {}
        self._launch = 0
        self._launches: dict[bytes, int] = {}
        # Leases and welcomes of different runs, jobs and incarnations never have one number.
        self._lease = incarnation * NUMBERS
        self._welcome = self._lease - (job is None)
        self._asks = PendingRequests()
        self._now = 0.0
        self._out: list[Send] = []

    def _step(
        self,
        peer: bytes,
        event: str,
        message: Message | None,
        payloads: Sequence[object] = (),
        nbytes: int = 0,
    ) -> None:
        """Walk one row of the table."""
        state = self._states.get(peer, "absent")
        row = COORDINATOR.get((state, event))
        if row is None:
            self.dropped += event != "gone"
            return
        after, action = row
        self._states[peer] = after
        act = getattr(self, f"_{action}")
        if action == "take_payload":
            act(peer, message, payloads[0], nbytes)
        else:
            act(peer, message)
        if self._states.get(peer) == "absent":
            self._states.pop(peer, None)

    def _send(self, peer: bytes, message: Message, payloads: tuple[object, ...] = ()) -> None:
        self._out.append(Send(peer, message, payloads))
        known = self._ranks.get(peer) or self._workers.get(peer)
        if known is not None:
            known.told = self._now

    def _is_ready(self) -> bool:
        """A job that is planned needs a worker to say how many samples there are."""
        return bool(self.fingerprint) or (self.job is not None and self.job.plan is None)

    def _start_job(self, job: JobSpec) -> None:
        self.job = job
        self._welcome += 1
        for peer in list(self._workers):
            self._step(peer, "job", None)

    def _switch_run(self) -> None:
        """Start the run that all ranks have begun, once nobody is left in the one before."""
        if self.job is None or not self._is_ready() or self._why_apart():
            return
        wanted = [r.begun for r in self._ranks.values() if r.begun]
        if self.run is not None and wanted and min(b.run for b in wanted) < self.run.number:
            self._stop_run()  # a rank is a run behind, or all start anew and count from nothing
        current = self.run.number if self.run else -1
        later = [begin for begin in wanted if begin.run > current]
        covered = {n for r in self._ranks.values() if r.begun in later for n in r.hello.ranks}
        if not later or (self.run is not None and len(covered) < self.job.ranks):
            return
        self._stop_run()
        begin = min(later, key=lambda each: (each.run, each.start.step, each.start.microbatch))
        if self.job.plan is not None and not 0 <= begin.start.start <= self.count:
            self._fail(
                "protocol",
                f"the ledger stands at sample {begin.start.start} and there are {self.count}: it "
                "belongs to another data set",
            )
            return
        try:
            order = permutation(self.count, self._seed(), begin.epoch, shuffle=self.job.shuffle)
        except MemoryError as error:
            self._fail("plan", f"the balancer cannot hold an order of {self.count}: {error}")
            return
        planner = self.plan_with(self.job.plan) if self.job.plan else None
        self.run = EpochRun(begin, self.job, order, planner, self._lease)
        for rank in self._ranks.values():
            self._heed(rank)

    def _why_apart(self) -> str:
        """Return why the ranks that have begun the same run cannot run together, empty if they can.

        The last of a job that was killed may say where they were after the first of the next.
        """
        begins = [(rank, rank.begun) for rank in self._ranks.values() if rank.begun]
        runs = sorted({begin.run for _, begin in begins})
        reasons = (why_apart((r, b) for r, b in begins if b.run == run) for run in runs)
        return next(filter(None, reasons), "")

    def _heed(self, rank: RankPeer) -> None:
        """Learn what a rank has had: all of a run before its own, and some steps of its own."""
        run, begun = self.run, rank.begun
        if run is None or begun is None:
            return
        if begun.run > run.number:
            run.delivery.leave(rank.hello.ranks)
        elif begun.run == run.number:
            run.delivery.know(begun.known, begun.holes)
            place = max(rank.had, (begun.start.step, begun.start.microbatch))
            run.delivery.passed(rank.hello.ranks, *place)
        run.end_useless_leases()

    def _stop_run(self) -> None:
        if self.run is not None:
            self._lease = self.run.leases.last
            for held in self.run.leases.clear():
                self._send(held.worker, Revoke(held.number))
        self.run, self.trouble = None, None

    def _seed(self) -> int:
        return self.job.plan.seed if self.job and self.job.plan else 0

    def _drop_rank(self, peer: bytes) -> None:
        self._ranks.pop(peer, None)
        self._asks.leave(peer)

    def _end_job(self) -> None:
        """Nobody trains any more: forget the run, and the job if it came with the ranks."""
        self._stop_run()
        for peer in [] if self.fixed_job else list(self._workers):
            self._step(peer, "job ended", None)
        if not self.fixed_job:
            self.job, self.count, self.fingerprint = None, 0, ""

    def _guard(self, action: Callable[[EpochRun], None]) -> None:
        """Do something that may find the run impossible."""
        if self.run is None or self.trouble is not None:
            return
        try:
            action(self.run)
        except ValueError as error:
            self._fail("plan", str(error))
        except MemoryError as error:
            self._fail("plan", f"the balancer has not enough memory: {error}")

    def _fail(self, kind: str, reason: str) -> None:
        self.trouble = RunFailed(kind, reason)
        for rank in self._ranks.values():
            self._finish(rank.peer, self.trouble)

    def _finish(self, peer: bytes, last: RunFailed | EpochEnd) -> None:
        """Tell a rank that its run has no more to give."""
        self._send(peer, last)
        if peer in self._ranks:
            self._ranks[peer].finished = True

    def _ready_workers(self) -> list[WorkerPeer]:
        """Return the workers that can be given work: one that hangs must not get it all again."""
        ready = (w for w in self._workers.values() if self._states.get(w.peer) == "worker ready")
        return [worker for worker in ready if not worker.late]
