"""The coordinator's record of each worker and each trainer process (a *rank peer*).

All times are in seconds on the coordinator's clock. A worker from which ranks pull payloads says in
its hello where it listens. It is given a token, by which ranks know it from then on, and
credentials, which only it and the ranks are told, over their connections to the balancer. A worker
that says hello again is another one here: nothing that it announced before is of use.
"""

import math
from collections.abc import Callable

import msgspec

from ...job.recent_counts import RecentCounts
from ...protocol.job_spec import JobSpec
from ...protocol.messages import RankHello, StartRun, WorkerHello
from ...protocol.parts import NO_PLACE, NOT_REPORTED, PayloadServer, WorkInProgress
from ...protocol.status_messages import ClockOffset
from ..delivery.step import BEGINNING, Position, RankProgress
from ..run.leases import LEASES_PER_WORKER

# The part that the last samples have in how long one takes.
WEIGHT = 0.5


class WorkerStats(RecentCounts):
    """The counts of one worker; `since` is when it joined, times are the coordinator's.

    Counted are samples `probed`, `decoded` and `failed`, `nbytes` of payload, and milliseconds at
    each work, `probe_ms` and `decode_ms`, and of CPU, `cpu_ms`. ms_each: milliseconds for one
    sample lately, by kind of lease, where that is known.
    """

    def __init__(self, since: float) -> None:
        super().__init__(since)
        self.ms_each: dict[str, float] = {}
        self._before: dict[str, int] = {}

    def record_work(self, now: float, probe_ms: int, decode_ms: int, cpu_ms: int) -> None:
        """Record the total time that a worker has spent on each kind of work, and its CPU time.

        The time that it reports first is left out: it may have worked for another balancer.
        """
        self.mark(now)
        told = {"probe_ms": probe_ms, "decode_ms": decode_ms, "cpu_ms": cpu_ms}
        self._before = self._before or told
        for name, total in told.items():
            self.done[name] = total - self._before[name]

    def note_time(self, kind: str, each_us: int) -> None:
        """Note how long one sample takes; a negative time says that it is not known."""
        if each_us >= 0:
            new = each_us / 1000
            before = self.ms_each.get(kind, new)
            self.ms_each[kind] = WEIGHT * new + (1 - WEIGHT) * before


class WorkerPeer(msgspec.Struct):
    """A worker process.

    `heard_at` and `sent_at` are when the last message came from it and went to it. A worker is
    `unresponsive` when a lease of it expired or was lost, or others had to do it, and it has shown
    no result since: it gets no more work until it does. `failure` is why it cannot open the job's
    source, empty if it can or has not tried; `rubbish` counts what it sent that cannot be right.
    `in_progress` is the sample that it last reported to work on, at `heartbeat_at`. `serves` is
    where ranks pull its payloads, None if they cannot; `why_inline` why it announces no more there.
    `was_asked_again` once it said what others do not: they may have gone. One that is `leaving` is
    leased no more.
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
    leaving: bool = False


class RankPeer(msgspec.Struct):
    """A trainer process, which plays one or several ranks.

    `started` is the run that it started last. `finished` is set once it was sent the end of that
    run, of which it may have more to take. `taken_until` is the (step, microbatch) up to which it
    took that run before the balancer started the run again. `since` is when it was admitted.
    `pinged_at` is when it last reported that it waits for a microbatch; `heard_at` when it was last
    known to be here. `taken` is what it has acknowledged of its run since the balancer started
    that. was_served: it was sent a microbatch of it. waited_ms: as it reports it.
    """

    peer: bytes
    hello: RankHello
    started: StartRun | None = None
    finished: bool = False
    sent_at: float = 0.0
    heard_at: float = 0.0
    since: float = 0.0
    pinged_at: float = -math.inf
    was_served: bool = False
    taken_until: Position = BEGINNING
    taken: RankProgress = msgspec.field(default_factory=RankProgress)
    waited_ms: int = 0
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


# Makes the credentials for ranks of a worker with this public key (empty: nothing would be
# encrypted): a public and a secret key under CURVE (Z85), or no key and a password. None if ranks
# may not connect to it.
MakeCredentials = Callable[[bytes], tuple[bytes, bytes] | None]


def why_not_direct(worker: WorkerPeer, job: JobSpec | None) -> str:
    """Return why a worker cannot take part in a job whose payloads are to be pulled."""
    if job is None or job.transport != "direct" or worker.serves is not None:
        return ""
    why = worker.why_inline or worker.hello.transport
    return (
        f'the job has transport="direct", and this worker\'s payloads travel {why:.200}: start it '
        "with counterpoise worker --serve, or leave transport"
    )


_GOLDEN_RATIO = (5**0.5 - 1) / 2


class WorkerPool:
    """Workers: by name, those that can be leased samples, and by how many leases these have.

    Kept up to date by those who change a worker or its leases, so that no message has to walk all
    workers.

    A rank connects to each worker that has decoded something for it, so each worker has a *home*, a
    place on the circle of all ranks: of the samples that are as urgent it takes those of the ranks
    from there on. Homes are multiples of the golden ratio: however many workers there are, they are
    spread evenly, and none moves when others come and go.

    >>> pool = WorkerPool()
    >>> pool.update(b"a", is_assignable=True)
    >>> leases = {b"a": 1}
    >>> pool.next_free(leases.__getitem__)
    b'a'
    >>> leases[b"a"] = 2
    >>> pool.note(b"a")
    >>> pool.next_free(leases.__getitem__) is None
    True
    """

    def __init__(self) -> None:
        self._by_name: dict[str, dict[bytes, WorkerPeer]] = {}
        self.assignable: dict[bytes, None] = {}
        # Workers that may have room, by the number of leases that they had when last looked at.
        self._free = tuple(dict[bytes, None]() for _ in range(LEASES_PER_WORKER))
        self._changed: dict[bytes, None] = {}
        # From 0 to 1; of the names of all workers there have been.
        self._homes: dict[str, float] = {}

    def add(self, worker: WorkerPeer) -> None:
        """Add a worker process that has said hello."""
        name = worker.hello.name
        self._by_name.setdefault(name, {})[worker.peer] = worker
        self._homes.setdefault(name, len(self._homes) * _GOLDEN_RATIO % 1)

    def remove(self, worker: WorkerPeer) -> None:
        """Remove a worker process."""
        named = self._by_name[worker.hello.name]
        del named[worker.peer]
        if not named:
            del self._by_name[worker.hello.name]
        self.update(worker.peer, is_assignable=False)
        for free in self._free:
            free.pop(worker.peer, None)

    def named(self, name: str) -> list[WorkerPeer]:
        """Return the worker processes of a name: one, but for those that replace each other."""
        return list(self._by_name.get(name, {}).values())

    def update(self, peer: bytes, is_assignable: bool) -> None:
        """Record whether a worker can be leased samples now."""
        if is_assignable == (peer in self.assignable):
            return
        if is_assignable:
            self.assignable[peer] = None
        else:
            del self.assignable[peer]
        self.note(peer)

    def note(self, peer: bytes) -> None:
        """Note that the number of a worker's leases has changed."""
        self._changed[peer] = None

    def note_all(self) -> None:
        """Note that no worker has a lease any more."""
        self._changed.update(self.assignable)

    def next_free(self, count: Callable[[bytes], int]) -> bytes | None:
        """Return a worker with the fewest leases that may have another, None if there is none.

        `count` returns how many leases a worker has. It is returned again until that changes.
        """
        for peer in self._changed:
            self._place(peer, count(peer))
        self._changed.clear()
        return next((peer for free in self._free for peer in free), None)

    def home(self, name: str, ranks: int) -> int:
        """Return the rank at which a worker of a name is at home, of so many."""
        return int(self._homes[name] * ranks)

    def idle(self, count: Callable[[bytes], int]) -> list[bytes]:
        """Return the workers without a lease."""
        self.next_free(count)
        return list(self._free[0])

    def _place(self, peer: bytes, leases: int) -> None:
        for number, free in enumerate(self._free):
            if number == leases and peer in self.assignable:
                free.setdefault(peer)
            else:
                free.pop(peer, None)
