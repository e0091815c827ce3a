"""Works for several jobs, of one balancer or of several, in turns.

Theory of operation. A balancer is asked twice a second which jobs it has, over a connection that
belongs to none of them. Each job is worked for as by a worker of its own (job_worker.py): a
connection, heartbeats, the job's data, an address where its trainers pull, and none of these knows
of another. One thread takes turns among those that have parts to make, by `turns.py`; a job without
leaves its time to the others.

A balancer that is silent is waited for, and found anew if its address comes from a file; what was
open for its jobs is closed when it has moved.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import zmq

from ...balancer.protocol.messages import JobList, ListJobs, PeerRejected
from ...balancer.transport.finding import find_address
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import peer_name
from ...balancer.transport.sockets import Link
from .job_worker import IDLE_MS, RemoteWorker
from .turns import DecodeTurns

logger = logging.getLogger(__name__)

# A balancer is asked this often which jobs it has; one is closed that has not been for so long: a
# balancer that was just started has none until its ranks have found it.
ASK_S, ABSENT_S = 0.5, 10.0
# Balancers and jobs are looked at this often.
LOOK_S = 0.001
# A worker that is to end waits no longer for a balancer that has been silent so long.
GONE_S = 4.0
# Of a balancer that is silent the log says so, first after the one time, then after the other.
SAY_S, SAY_AGAIN_S = 5.0, 30.0


@dataclass(frozen=True, slots=True)
class ServedBalancer:
    """A balancer to work for: where it is found, its weight, and those of its jobs by name."""

    address: str
    weight: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)
    keys: PeerKeys | None = None


# Opens a worker for a job: (balancer, its address now, job).
OpenWorker = Callable[[ServedBalancer, str, str], AbstractContextManager[RemoteWorker]]


class LostBalancerError(RuntimeError):
    """No balancer has answered for as long as one was to be waited for."""

    exit_status = 3


class JobFinder:
    """Asks one balancer which jobs it has; `jobs` is what it said last, and when each was named."""

    def __init__(self, balancer: ServedBalancer) -> None:
        self.balancer = balancer
        self.endpoint = ""
        self.jobs: dict[str, float] = {}
        self.heard_at = time.monotonic()
        self.refusal = ""
        self._asked_at = 0.0
        self._said_at = -math.inf
        self._is_heard = False
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._link: Link | None = None

    def turn(self, now: float) -> bool:
        """Ask if it is time, and take answers; return whether the balancer is elsewhere now."""
        has_moved = self._follow(now) if now > self._asked_at + ASK_S else False
        while self._link is not None and (received := self._link.receive()) is not None:
            self.heard_at, message = now, received[0]
            if isinstance(message, JobList):
                self.jobs |= dict.fromkeys(message.names, now)
            elif isinstance(message, PeerRejected) and not self.refusal:
                self.refusal = message.reason
                text = "the balancer at %s turns this worker away: %s"
                logger.error(text, self.endpoint, message.reason, extra={"event": "refuse"})
            if not self._is_heard:
                self._is_heard = True
                logger.info("the balancer at %s answers", self.endpoint, extra={"event": "join"})
        heard_at = self.heard_at
        self.jobs = {job: at for job, at in self.jobs.items() if heard_at <= at + ABSENT_S}
        if now > max(heard_at + SAY_S, self._said_at + SAY_AGAIN_S):
            self._said_at, self._is_heard, hint = now, False, ""
            if not self.endpoint:
                hint = ": the file does not say an address"
            elif self._link is not None and self._link.handshakes.broken:
                hint = ": it ends each connection; if it has keys, give --keys"
            logger.warning(
                "waits for the balancer at %s, which has not answered for %.0f s%s",
                self.endpoint or self.balancer.address, now - heard_at, hint,
                extra={"event": "wait"},
            )  # fmt: skip
        return has_moved

    def names(self, job: str) -> bool:
        """Return whether the balancer has named a job in its last answer."""
        return self.jobs.get(job, -math.inf) >= self.heard_at

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller woken up by answers."""
        if self._link is not None:
            self._link.register(poller)

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None and self._context is not None:
            self._link.close(0)
            self._context.term()
            self._link = None

    def _follow(self, now: float) -> bool:
        """Find the balancer, connect to it, and ask."""
        self._asked_at = now
        address = find_address(self.balancer.address) or self.endpoint
        has_moved = address != self.endpoint
        if has_moved:
            self.close()
            self.endpoint, self.jobs = address, {}
            self._context = zmq.Context()
            keys = self.balancer.keys
            name = peer_name("" if keys is None else keys.job, "jobs")
            self._link = Link(self._context, address, name, keys)
        if self._link is not None:
            self._link.send(ListJobs())
            self.refusal = self.refusal or self._link.handshakes.rejection_reason()
        return has_moved


@dataclass(slots=True)
class _Session:
    """A job that is worked for."""

    finder: JobFinder
    job: str
    worker: RemoteWorker
    closing: ExitStack


class JobsWorker:
    """The loop: find jobs, and work for them in turns."""

    def __init__(
        self, balancers: Sequence[ServedBalancer], open_worker: OpenWorker, room_bytes: int
    ) -> None:
        """`room_bytes` is what the frames of all jobs together may take here."""
        self._finders = [JobFinder(balancer) for balancer in balancers]
        self._open, self._room_bytes = open_worker, room_bytes
        self._followed = -math.inf
        self._turns = DecodeTurns()
        self._sessions: dict[str, _Session] = {}
        # Jobs that have sent this worker away: not joined again while they are there.
        self._refused: set[str] = set()
        self._leave_at = math.inf

    def work(
        self, stop: Callable[[], bool], until_lost_s: float | None = None, drain_s: float = 0.0
    ) -> str:
        """Work until `stop` returns true or no job wants this worker; return why, empty if well.

        Asked to stop, it takes no other parts, and ends when nothing that it has is needed, after
        `drain_s` at most: what trainers have not taken until then is made again by others.
        Raises LostBalancerError after `until_lost_s` without an answer of any balancer, ValueError
        where no balancer lets it in.
        """
        try:
            while not (stop() and self._may_end(drain_s)):
                reason = self._turn(until_lost_s)
                if reason is not None:
                    return reason
            for session in self._sessions.values():
                session.worker.leave()
            return ""
        finally:
            for key in list(self._sessions):
                self._close(key)
            for finder in self._finders:
                finder.close()

    def _may_end(self, drain_s: float) -> bool:
        """Return whether to end without the balancers' Bye, which heartbeats ask for."""
        now, sessions = time.monotonic(), self._sessions.values()
        if math.isinf(self._leave_at):
            self._leave_at = now + drain_s
            for session in sessions:
                session.worker.leaving = True
        # A balancer that has gone will not say that nothing is needed.
        heard = [session for session in sessions if now < session.finder.heard_at + GONE_S]
        return now >= self._leave_at or not any(session.worker.is_serving for session in heard)

    def _turn(self, until_lost_s: float | None) -> str | None:
        """Do what is due, and a piece of work; return why this worker is to end, None if not."""
        now = time.monotonic()
        if now > self._followed + LOOK_S:
            self._followed = now
            self._follow_all(now, until_lost_s)
        for key, session in list(self._sessions.items()):
            session.worker.now = max(now, session.worker.now)
            if (end := session.worker.look()) is not None and self._is_last(key, end):
                return end
        hungry = [key for key, session in self._sessions.items() if session.worker.has_work]
        if hungry:
            self._take_turn(hungry)
            return None
        return self._rest()

    def _follow_all(self, now: float, until_lost_s: float | None) -> None:
        """Follow the balancers; LostBalancerError, ValueError where none is left, as in `work`."""
        for finder in self._finders:
            self._follow(finder, now)
        refusals = [finder.refusal for finder in self._finders]
        if all(refusals):
            raise ValueError(refusals[0])
        if until_lost_s and now > max(finder.heard_at for finder in self._finders) + until_lost_s:
            raise LostBalancerError(f"no balancer has answered for {until_lost_s:.0f} s")

    def _is_last(self, key: str, end: str) -> bool:
        """Close a job that lets this worker go; return whether there is no other."""
        job = self._sessions[key].job
        self._refused.add(key)
        self._close(key)
        level, event = (logging.ERROR, "refuse") if end else (logging.INFO, "leave")
        text = "job %s lets this worker go%s"
        logger.log(level, text, job, end and f": {end}", extra={"event": event, "job": job})
        return not self._sessions

    def _follow(self, finder: JobFinder, now: float) -> None:
        """Open workers for jobs that are new, and close those of jobs that are over."""
        # A job is known by its balancer's place, too: two balancers may have jobs of one name.
        has_moved = finder.turn(now)
        for key, session in list(self._sessions.items()):
            if session.finder is finder and (has_moved or session.job not in finder.jobs):
                session.worker.leave()
                self._close(key)
        place = self._finders.index(finder)
        jobs = {f"{place}/{job}": job for job in finder.jobs}
        self._refused -= {k for k in self._refused if k.startswith(f"{place}/")} - jobs.keys()
        if math.isfinite(self._leave_at):
            return
        for key in jobs.keys() - self._sessions.keys() - self._refused:
            if finder.names(jobs[key]):
                self._begin(key, finder, jobs[key])

    def _begin(self, key: str, finder: JobFinder, job: str) -> None:
        closing, balancer = ExitStack(), finder.balancer
        worker = closing.enter_context(self._open(balancer, finder.endpoint, job))
        self._sessions[key] = _Session(finder, job, worker, closing)
        weight = balancer.weight * balancer.weights.get(job, 1.0)
        self._turns.add(key, weight)
        logger.info(
            "works for job %s of %s, with weight %g; decoded samples: %s",
            job, finder.endpoint, weight, worker.way, extra={"event": "job", "job": job},
        )  # fmt: skip
        self._share_memory()

    def _close(self, key: str) -> None:
        self._turns.remove(key)
        self._sessions.pop(key).closing.close()
        self._share_memory()

    def _share_memory(self) -> None:
        """Give each job's frames the same part of what this process may keep."""
        for session in self._sessions.values():
            session.worker.keep_at_most(self._room_bytes // len(self._sessions))

    def _take_turn(self, hungry: list[str]) -> None:
        """Work for the job whose turn it is."""
        chosen = self._turns.next(hungry)
        worker = self._sessions[chosen].worker
        began = time.monotonic()
        worker.make_part()
        if len(hungry) > 1:
            self._turns.charge(chosen, worker.now - began)

    def _rest(self) -> str | None:
        """Wait for a message; return why waiting longer is useless, None if it is not."""
        poller = zmq.Poller()
        for finder in self._finders:
            finder.register(poller)
        for session in self._sessions.values():
            session.worker.link.register(poller)
        with ExitStack() as held:
            for session in self._sessions.values():
                held.enter_context(session.worker.using_link)
            idle = not poller.poll(IDLE_MS)
        for key, session in list(self._sessions.items()):
            if (end := session.worker.rest(idle)) and self._is_last(key, end):
                return end
        return None
