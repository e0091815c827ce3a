"""The coordinator's record of each worker and each trainer process (a *rank peer*).

All times are in seconds on the coordinator's clock. A worker from which ranks pull payloads says in
its hello where it listens. It is given a token, by which ranks know it from then on, and
credentials, which only it and the ranks are told, over their connections to the balancer. A worker
that says hello again is another one here: nothing that it announced before is of use.
"""

import math
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from ...protocol.job_spec import JobSpec
from ...protocol.messages import RankHello, StartRun, WorkerHello
from ...protocol.parts import NO_PLACE, NOT_REPORTED, PayloadServer, WorkInProgress
from ...protocol.status_messages import ClockOffset
from ..delivery.step import BEGINNING, Position, RankProgress

# The recent past, in seconds, and the time between the counts that are remembered of it.
RECENT_S = 30.0
MARK_S = 2.0
# The part that the last samples have in how long one takes.
WEIGHT = 0.5


class WorkerStats(msgspec.Struct):
    """The counts of one worker; `since` is when it joined, times are the coordinator's.

    Counted are samples `probed`, `decoded` and `failed`, `nbytes` of payload, and milliseconds at
    each work, `probe_ms` and `decode_ms`.

    >>> stats = WorkerStats(since=0.0)
    >>> for second in range(100): stats.add(float(second), decoded=3)
    >>> stats.done["decoded"]
    300
    >>> stats.recent(100.0)
    (Counter({'decoded': 90}), 30.0)
    """

    since: float
    # Milliseconds for one sample lately, by kind of lease, where that is known.
    ms_each: dict[str, float] = msgspec.field(default_factory=dict)
    done: Counter[str] = msgspec.field(default_factory=Counter)
    _before: tuple[int, int] | None = None
    _marks: deque[tuple[float, Counter[str]]] = msgspec.field(default_factory=deque)

    def add(self, now: float, **counts: int) -> None:
        """Add results to the counts."""
        self._mark(now)
        self.done.update(counts)

    def record_work(self, now: float, probe_ms: int, decode_ms: int) -> None:
        """Record the total time that a worker has spent on each kind of work.

        The time that it reports first is left out: it may have worked for another balancer.
        """
        self._mark(now)
        if self._before is None:
            self._before = probe_ms, decode_ms
        self.done["probe_ms"] = probe_ms - self._before[0]
        self.done["decode_ms"] = decode_ms - self._before[1]

    def note_time(self, kind: str, each_us: int) -> None:
        """Note how long one sample takes; a negative time says that it is not known."""
        if each_us >= 0:
            new = each_us / 1000
            before = self.ms_each.get(kind, new)
            self.ms_each[kind] = WEIGHT * new + (1 - WEIGHT) * before

    def recent(self, now: float) -> tuple[Counter[str], float]:
        """Return the counts of the recent past, and its length in seconds."""
        start, before = self.since, Counter[str]()
        for when, done in self._marks:
            if when > now - RECENT_S:
                break
            start, before = when, done
        return self.done - before, max(0.0, now - start)

    def _mark(self, now: float) -> None:
        """Remember the counts every MARK_S, as far back as `recent` needs them."""
        if self._marks and now - self._marks[-1][0] < MARK_S:
            return
        self._marks.append((now, self.done.copy()))
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_S:
            self._marks.popleft()


class WorkerPeer(msgspec.Struct):
    """A worker process.

    `heard_at` and `sent_at` are when the last message came from it and went to it. A worker is
    `unresponsive` when a lease of it expired or was lost, or others had to do it, and it has shown
    no result since: it gets no more work until it does. `failure` is why it cannot open the job's
    source, empty if it can or has not tried; `rubbish` counts what it sent that cannot be right.
    `in_progress` is the sample that it last reported to work on, at `heartbeat_at`. `serves` is
    where ranks pull its payloads, None if they cannot; `why_inline` why it announces no more there.
    `was_asked_again` once it said what others do not: they may have gone.
    """

    peer: bytes
    hello: WorkerHello
    heard_at: float
    sent_at: float
    unresponsive: bool = False
    failure: str = ""
    rubbish: int = 0
    in_progress: WorkInProgress = NOT_REPORTED
    heartbeat_at: float = -math.inf
    fingerprint: str = ""
    stats: WorkerStats = msgspec.field(default_factory=lambda: WorkerStats(0.0))
    clock: ClockOffset = msgspec.field(default_factory=ClockOffset)
    serves: PayloadServer | None = None
    why_inline: str = ""
    was_asked_again: bool = False


class RankPeer(msgspec.Struct):
    """A trainer process, which plays one or several ranks.

    `started` is the run that it started last. `finished` is set once it was sent the end of that
    run, of which it may have more to take. `taken_until` is the (step, microbatch) up to which it
    took that run before the balancer started the run again. `launch` counts the launches of the
    trainer, as far as they can be distinguished from here. `pinged_at` is when it last reported
    that it waits for a microbatch. `taken` is what it has acknowledged of its run since the
    balancer started that. was_served: it was sent a microbatch of it.
    """

    peer: bytes
    hello: RankHello
    started: StartRun | None = None
    finished: bool = False
    sent_at: float = 0.0
    launch: int = 0
    pinged_at: float = -math.inf
    was_served: bool = False
    taken_until: Position = BEGINNING
    taken: RankProgress = msgspec.field(default_factory=RankProgress)
    clock: ClockOffset = msgspec.field(default_factory=ClockOffset)

    @property
    def run(self) -> int:
        """The number of the run that it started last, -1 if none."""
        return -1 if self.started is None else self.started.run

    def reached(self, number: int) -> Position:
        """Return the first microbatch of its run that it may still need, as one of its ranks."""
        here = self.started.start if self.started is not None else NO_PLACE
        return max(self.taken_until, (here.step, here.microbatch), self.taken.needed([number]))

    def has_seat_of(self, hello: RankHello) -> bool:
        """Return whether it plays one of a process' ranks, with the same number among sharers."""
        mine = self.hello
        return mine.sharer == hello.sharer and not set(mine.ranks).isdisjoint(hello.ranks)


AS_ASKED = 'transport="inline" was given'


class PullCredentials(msgspec.Struct, frozen=True):
    """A worker's credentials for ranks: a key pair under CURVE (Z85), or only a password."""

    public: bytes
    secret: bytes


# Makes the credentials of a worker with this public key (empty: nothing would be encrypted); None
# if ranks may not connect to it.
MakeCredentials = Callable[[bytes], PullCredentials | None]


def why_not_direct(worker: WorkerPeer, job: JobSpec | None) -> str:
    """Return why a worker cannot take part in a job whose payloads are to be pulled."""
    if job is None or job.transport != "direct" or worker.serves is not None:
        return ""
    why = worker.why_inline or worker.hello.transport
    return (
        f'the job has transport="direct", and this worker\'s payloads travel {why:.200}: start it '
        "with counterpoise worker --serve, or leave transport"
    )


def how_carried(worker: WorkerPeer, transport: str) -> str:
    """Return how a worker's payloads travel, and why, as text."""
    if worker.why_inline:
        return f"inline: {worker.why_inline}"
    if worker.serves is not None and transport == "inline":
        return f"inline: {AS_ASKED}"
    return worker.hello.transport
