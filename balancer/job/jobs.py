"""The jobs of one balancer: what its server asks of all of them, and who may begin one.

Theory of operation. Each message goes to the job that its peer's name says (transport/naming.py);
jobs share the socket, the loop's time and nothing else. Taking a message in does no more than note
what it says: `tick` then has each job that was told something do what there is to do, once for all
that has come. A job is there from its first trainer's hello until its trainers have been away for
FORGOTTEN_S and its workers have left; trainers of another job with its name take its place once all
of its own have left. Workers ask which jobs have trainers, and join each as a peer of its own.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from ..parties.messages import JoinJob, LeaveJob
from ..pool.pool import DEAD_S, GENERATION
from ..protocol.messages import (
    BalancerStops,
    Bye,
    JobList,
    ListJobs,
    Message,
    PeerRejected,
    UnknownPeer,
)
from ..protocol.status_messages import GetStatus, StatusReport
from ..transport.naming import checked_job, read_job
from .admission import MakeCredentials, describe_version_mismatch
from .effects import Send
from .job import PlayedJob
from .job_events import logger
from .messages import JoinPool
from .status import make_status_report

# A job without trainers is remembered for so long, with what is known of its samples: restarts.
FORGOTTEN_S = 60.0
# Workers that have asked for jobs within so long, so many of them, are told of one that begins.
ASKED_S, MOST_ASKERS = 2.0, 4096
# Characters of a reason that quotes a job.
MAX_REASON = 1000


class PlayedJobs:
    """The jobs, by name. generation: greater than that of a balancer before: seconds since 1970.

    make_credentials: see Admission. only: names of jobs that are allowed, empty for all. The other
    arguments are those of PlayedJob. refused: messages and peers that the server turned away.
    """

    def __init__(
        self,
        generation: int,
        make_credentials: MakeCredentials,
        only: frozenset[str] = frozenset(),
        dead_s: float = DEAD_S,
    ) -> None:
        self.refused = 0
        self.jobs: dict[str, PlayedJob] = {}
        self._generation, self._make_credentials = generation, make_credentials
        self._only, self._dead_s = only, dead_s
        self._numbers = count((generation << GENERATION) + 1)
        # Until when a job without trainers is remembered.
        self._until: dict[str, float] = {}
        # Who has asked for jobs, for which ("": all), and when; the latest last.
        self._askers: dict[bytes, tuple[str, float]] = {}
        self._has_begun = False
        self._out: list[Send] = []
        self._now = 0.0

    def handle(
        self, peer: bytes, message: Message, payloads: Sequence[object] = (), now: float = 0.0
    ) -> list[Send]:
        """Take one message in; return what to send at once: the rest is `tick`'s."""
        self._now = now
        name = read_job(peer)
        if isinstance(message, ListJobs):
            self._askers.pop(peer, None)
            self._askers[peer] = name, now
            if len(self._askers) > MOST_ASKERS:
                del self._askers[next(iter(self._askers))]
            return [Send(peer, JobList(self.names(only=name)))]
        if isinstance(message, GetStatus):
            asked = name or message.job or next(iter(self.names() or sorted(self.jobs)), "")
            report = StatusReport(refused=self.refused)
            if (job := self.jobs.get(asked)) is not None:
                report = make_status_report(job, self.refused, now)
            return [Send(peer, report)]
        job = self.jobs.get(name)
        if isinstance(message, JoinJob):
            try:
                job = self._find_job(name, message)
            except Exception as error:  # whatever its texts hold
                return [Send(peer, PeerRejected(f"{error!s:.{MAX_REASON}}"))]
            self._has_begun |= job.parties.is_empty
        if job is not None:
            return self._ask(name, job, partial(job.receive, peer, message, payloads, now))
        if isinstance(message, JoinPool):
            return []  # a worker that is early, or late: it asks which jobs there are
        return [Send(peer, Bye() if isinstance(message, LeaveJob) else UnknownPeer())]

    def unreachable(self, peer: bytes, now: float) -> None:
        """Take note that a message could not be delivered."""
        name = read_job(peer)
        if (job := self.jobs.get(name)) is not None:
            self._out += self._ask(name, job, partial(job.unreachable, peer, now))

    def tick(self, now: float) -> list[Send]:
        """Have the jobs do what there is to do, and forget those that are over."""
        self._now = now
        sent, self._out = self._out, []
        if self._has_begun:
            self._has_begun = False
            sent += [
                Send(peer, JobList(self.names(only=name)))
                for peer, (name, asked_at) in self._askers.items()
                if now < asked_at + ASKED_S
            ]
        for name, job in [*self.jobs.items()]:
            if now >= job.next_look():
                sent += self._ask(name, job, partial(job.turn, now))
                if name not in self.jobs:
                    continue
                if not job.parties.is_empty:
                    self._until[name] = now + FORGOTTEN_S
                elif now > self._until[name] and not job.admission.workers:
                    sent += self._forget(name)
        return sent

    def stop(self) -> list[Send]:
        """Return what to send before the balancer ends: trainers wait for the one that follows."""
        return [send for job in self.jobs.values() for send in job.stop(BalancerStops())]

    def next_deadline(self) -> float:
        """Return when `tick` must be called next."""
        return min((job.next_look() for job in self.jobs.values()), default=math.inf)

    def names(self, only: str = "") -> tuple[str, ...]:
        """Return the jobs that workers should serve; with `only` no other than that one."""
        return tuple(
            name
            for name, job in sorted(self.jobs.items())
            if only in ("", name) and not job.parties.is_empty
        )

    def _find_job(self, name: str, hello: JoinJob) -> PlayedJob:
        """Return the job of a trainer that comes; ValueError where it may have none."""
        if reason := describe_version_mismatch(hello.version):
            raise ValueError(reason)
        job = self.jobs.get(name)
        if job is not None and (job.opening.job, job.opening.layout) == (hello.job, hello.layout):
            return job
        checked_job(name)
        if self._only and name not in self._only:
            served = ", ".join(sorted(self._only))
            raise ValueError(f"this balancer serves job {served} only, and not {name}")
        new = PlayedJob(
            hello.job, hello.layout, self._generation, name, self._numbers,
            self._make_credentials, self._dead_s,
        )  # fmt: skip
        if job is not None:
            if not job.parties.is_empty:
                return job  # which refuses it, or has it wait until its own are known to be gone
            self._out += self._forget(name)
        self.jobs[name] = new
        self._until[name] = self._now + FORGOTTEN_S
        new.events.log("job", " has come")
        return new

    def _ask(self, name: str, job: PlayedJob, action: Callable[[], Any]) -> list[Send]:
        """Have a job do something; return what to send. One in which that fails ends alone."""
        try:
            sends: list[Send] | None = action()
        except Exception as error:
            logger.exception("job %s ends: the balancer has failed in it", name)
            why = f"the balancer has failed in this job: {type(error).__name__}: {error}"
            sends = [Send(peer, PeerRejected(why[:MAX_REASON])) for peer in job.parties.peers]
            with contextlib.suppress(Exception):  # it may fail again in ending
                sends += self._forget(name)
        return sends or []

    def _forget(self, name: str) -> list[Send]:
        job = self.jobs.pop(name)
        job.events.log("job", " is over: its ranks have gone")
        return job.stop(UnknownPeer())

    def reports(self) -> dict[str, StatusReport]:
        """Return the jobs' status reports by name."""
        return {
            name: make_status_report(job, self.refused, self._now)
            for name, job in self.jobs.items()
        }
