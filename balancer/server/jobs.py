"""The jobs of one balancer: a coordinator for each, and what the server asks of one.

Theory of operation. Each message goes to the coordinator of the job that its peer's name says
(transport/naming.py), and no coordinator knows of another: jobs share the socket, the loop's time
and nothing else. A job is there from its first rank's hello until its ranks have been away for
FORGOTTEN_S and its workers have left. Workers ask which jobs have ranks, and join each as a peer of
its own. Peers of a job that is not there are answered as by a balancer that was just started.

What happens in a coordinator is logged here, a line an event (job_log.py).
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from ..coordinator.machine import Coordinator
from ..coordinator.status_report import make_status_report
from ..job.effects import Diagnostics, Send
from ..protocol.messages import (
    JobList,
    ListJobs,
    Message,
    PeerRejected,
    RankHello,
    WorkerHello,
)
from ..protocol.status_messages import GetStatus, StatusReport
from ..protocol.transitions import State
from ..transport.naming import DEFAULT_JOB, checked_job, job_of
from .job_log import JobLog

# More jobs at a time are refused: each takes memory and time of the one process.
MAX_JOBS = 64
# A job without ranks is remembered for so long, with what is known of its samples: restarts.
FORGOTTEN_S = 60.0
LOOK_S = 1.0


class _Job(msgspec.Struct):
    """A job: its coordinator, its log, and until when it stays without ranks."""

    coordinator: Coordinator
    log: JobLog
    until: float = 0.0

    @property
    def has_ranks(self) -> bool:
        return bool(self.coordinator.ranks or self.coordinator.postponed)


class JobRouter:
    """Stands for a coordinator to the server's loop, and routes to those of the jobs.

    >>> jobs = JobRouter(Coordinator)
    >>> jobs.handle(b"|fleet.1", ListJobs(), now=0.0)
    [Send(peer=b'|fleet.1', message=JobList(names=()), payloads=())]
    """

    def __init__(self, make: Callable[[], Coordinator], only: frozenset[str] = frozenset()) -> None:
        """`make` makes the coordinator of a job that has come; others than `only` are refused."""
        self.diagnostics = Diagnostics()
        self.dropped = 0
        self._make, self._only = make, only
        self._jobs: dict[str, _Job] = {}
        # Answers peers of jobs that are not there.
        self._nobody = make()
        self._looked = -math.inf

    def handle(
        self, peer: bytes, message: Message, payloads: Sequence[object] = (), now: float = 0.0
    ) -> list[Send]:
        """Receive one message, for the coordinator of its peer's job; return what to send."""
        name = job_of(peer)
        if isinstance(message, ListJobs):
            return [Send(peer, JobList(self.names(only=name)))]
        if isinstance(message, GetStatus) and not name:
            name = next(iter(self.names() or sorted(self._jobs)), DEFAULT_JOB)
        job = self._jobs.get(name)
        if job is None and isinstance(message, RankHello | WorkerHello):
            if isinstance(message, WorkerHello) and name != DEFAULT_JOB:
                return []  # a worker that is early, or late: it asks which jobs there are
            try:
                job = self._begin(name)
            except ValueError as error:
                return [Send(peer, PeerRejected(str(error)))]
        coordinator = self._nobody if job is None else job.coordinator
        mine, its = self.diagnostics, coordinator.diagnostics
        its.software, its.refused, its.wall_ahead_s = mine.software, mine.refused, mine.wall_ahead_s
        dropped = coordinator.dropped
        sent = coordinator.handle(peer, message, payloads, now)
        self.dropped += coordinator.dropped - dropped
        if job is not None:
            job.log.look(coordinator)
        return sent

    def unreachable(self, peer: bytes, undelivered: Message, now: float) -> list[Send]:
        """Handle that a message could not be delivered."""
        job = self._jobs.get(job_of(peer))
        if job is None:
            return []
        sent = job.coordinator.unreachable(peer, undelivered, now)
        job.log.look(job.coordinator)
        return sent

    def tick(self, now: float) -> list[Send]:
        """Handle the passing of time in each job, and forget those that are over."""
        self._looked = now
        sent: list[Send] = []
        for name, job in list(self._jobs.items()):
            if now >= job.coordinator.next_deadline():
                sent += job.coordinator.tick(now)
                job.log.look(job.coordinator)
            if job.has_ranks:
                job.until = now + FORGOTTEN_S
            elif now > job.until and not job.coordinator.workers:
                self._forget(name)
        return sent

    def stop(self) -> list[Send]:
        """Return what to send before the balancer ends."""
        return [send for job in self._jobs.values() for send in job.coordinator.stop()]

    def next_deadline(self) -> float:
        """Return when `tick` must be called next."""
        if not self._jobs:
            return math.inf
        deadlines = (job.coordinator.next_deadline() for job in self._jobs.values())
        return min(self._looked + LOOK_S, *deadlines)

    def state_of(self, peer: bytes) -> State:
        """Return a peer's protocol state."""
        job = self._jobs.get(job_of(peer))
        return (self._nobody if job is None else job.coordinator).state_of(peer)

    def in_question(self) -> set[bytes]:
        """Return the ranks of which it must be known whether they are here: see Coordinator."""
        return set[bytes]().union(*(job.coordinator.in_question() for job in self._jobs.values()))

    def confirm(self, peer: bytes, now: float) -> None:
        """Record that a rank in question is here."""
        if (job := self._jobs.get(job_of(peer))) is not None:
            job.coordinator.confirm(peer, now)

    def names(self, only: str = "") -> tuple[str, ...]:
        """Return the jobs that workers should serve; with `only` no other than that one.

        Not those that wait for a restart: what a worker holds for a job is not for nobody.
        """
        return tuple(
            name for name, job in sorted(self._jobs.items()) if only in ("", name) and job.has_ranks
        )

    def reports(self) -> dict[str, StatusReport]:
        """Return the jobs' status reports by name."""
        return {name: make_status_report(job, 0) for name, job in self.coordinators().items()}

    def coordinators(self) -> dict[str, Coordinator]:
        """Return the jobs' coordinators by name, to be looked at."""
        return {name: job.coordinator for name, job in self._jobs.items()}

    def _begin(self, name: str) -> _Job:
        """Make a job; ValueError where it cannot be."""
        checked_job(name)
        if self._only and name not in self._only:
            served = ", ".join(sorted(self._only))
            raise ValueError(f"this balancer serves job {served} only, and not {name}")
        if len(self._jobs) >= MAX_JOBS:
            over = {each: job.until for each, job in self._jobs.items() if not job.has_ranks}
            if not over:
                raise ValueError(
                    f"this balancer serves {MAX_JOBS} jobs, the most: start another one"
                )
            self._forget(min(over, key=over.__getitem__))
        job = self._jobs[name] = _Job(self._make(), JobLog(name))
        return job

    def _forget(self, name: str) -> None:
        self._jobs.pop(name).log.forgotten()
