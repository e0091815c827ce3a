"""Which workers a job has: who is let in, what it has told of the data, and who is turned away.

The first worker whose source is open says what the data are, and holds as long as one that has said
so is here, or a trainer has had a part of them: others with other data are turned away. One that
cannot open the source is turned away once another can; while none can the job may be wrong.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from msgspec import structs

from ..pool.messages import FreeParts, PartMade, PartMeasured, PoolBeat
from ..pool.pool import NetworkPool
from ..pool.workers import PoolPart
from ..protocol.job_spec import JobSpec
from ..protocol.messages import Bye, Message, PeerRejected
from ..protocol.parts import PayloadServer
from ..protocol.records import VERSION
from .job_events import JobEvents
from .messages import JobNotOpened, JobOpened, JoinPool, OpenJob
from .told_source import ToldSource

# What is counted as recent is of the last RECENT_S to twice that.
RECENT_S = 15.0
# Characters of a name, a reason, a version that are quoted.
MAX_NAME, MAX_REASON, MAX_VERSION = 200, 600, 40
# The public key of a worker in; the key pair that trainers have, or a password, out. None: none.
MakeCredentials = Callable[[bytes], tuple[bytes, bytes] | None]


class PoolWorkerStats:
    """What a worker has done since it joined; done: see WorkerStatus, by its names."""

    def __init__(self, now: float) -> None:
        self.done = Counter[str]()
        self._marks = deque([(now, Counter[str]())], maxlen=2)
        self._first: PoolBeat | None = None

    @property
    def since(self) -> float:
        """Return since when the recent past is counted, in seconds."""
        return self._marks[0][0]

    def recent(self) -> Counter[str]:
        """Return what was done in the recent past."""
        return self.done - self._marks[0][1]

    def _add(self, now: float, **counts: int) -> None:
        if now >= self._marks[-1][0] + RECENT_S:
            self._marks.append((now, self.done.copy()))
        for name, count in counts.items():
            self.done[name] += count

    def take_beat(self, beat: PoolBeat, now: float) -> None:
        """Note the times that a beat tells, but for those of the first: it may have been away."""
        first = self._first = self._first or beat
        totals = {"busy_ms": beat.busy_ms - first.busy_ms, "cpu_ms": beat.cpu_ms - first.cpu_ms}
        self._add(now, **{name: n - self.done[name] for name, n in totals.items()})

    def take_answer(self, answer: PartMade | PartMeasured, part: PoolPart, now: float) -> None:
        """Count what a worker has made of a part."""
        failed, took_ms = len(answer.failed), answer.took_us // 1000
        count = len(part.places) - failed
        if isinstance(answer, PartMeasured):
            # What is kept loaded needs no time to be loaded later.
            self._add(now, probed=count, failed=failed, decode_ms=took_ms * bool(answer.kept))
        else:
            count = min(count, 1) if part.task.is_spare else count
            self._add(now, decoded=count, failed=failed, nbytes=answer.nbytes, decode_ms=took_ms)


@dataclass(slots=True, eq=False)
class AdmittedWorker:
    """A worker that has joined. server: where trainers pull; address "": nowhere.

    opened: what it has told of the data; failure: why it cannot open them. was_asked_again: once it
    said what others do not, who may have gone. why_inline: why a trainer cannot pull from it.
    """

    peer: bytes
    hello: JoinPool
    server: PayloadServer
    stats: PoolWorkerStats
    opened: JobOpened | None = None
    failure: str = ""
    was_asked_again: bool = False
    why_inline: str = ""


class Admission:
    """The workers of a job. source: what they have told of the data, None before.

    run: that all trainers have begun: workers that were started for a later one wait.
    refused: which was refused last, and why; "" once one was let in. failure: why no worker is left
    that may do the job. `out` is for the caller, who empties it.
    """

    def __init__(
        self, spec: JobSpec, opening: OpenJob, pool: NetworkPool, numbers: Iterator[int],
        make_credentials: MakeCredentials, events: JobEvents,
    ) -> None:  # fmt: skip
        """`numbers` are those of tokens, which no other worker has."""
        self._spec, self._opening, self._pool, self._numbers = spec, opening, pool, numbers
        self._make_credentials, self._events = make_credentials, events
        self.workers: dict[bytes, AdmittedWorker] = {}
        self._named: dict[str, AdmittedWorker] = {}
        self.servers: dict[int, PayloadServer] = {}
        self.source: ToldSource | None = None
        self._first_opener = ""
        self.refused = ""
        self.run = -1
        self.out: list[tuple[bytes, Message]] = []

    def find_token(self, worker: bytes) -> int:
        """Return the number by which trainers know a worker."""
        return self.workers[worker].server.token

    @property
    def has_open(self) -> bool:
        """Return whether a worker has the source open."""
        return any(worker.opened is not None for worker in self.workers.values())

    # --- joining

    def join(self, peer: bytes, hello: JoinPool, now: float) -> None:
        """Let a worker in, which may replace another process, and give it the job."""
        same = self._named.get(hello.name)
        if reason := describe_version_mismatch(hello.version):
            self._refuse(peer, hello.name, reason)
            self.lose(peer, now)
        elif same is not None and same.hello.incarnation > hello.incarnation:
            self.out.append((peer, Bye()))  # its successor is here: it goes on after a pause
        elif same is not None and (same.peer, same.hello) == (peer, hello) and not same.opened:
            self.ask(same)  # again: it waits for the job
        else:
            self.lose(peer, now, "leave", " (it begins anew)")
            if same is not None and same.peer != peer:
                self.out.append((same.peer, Bye()))
                self.lose(same.peer, now, "leave", " (a newer process has its name)", True)
            token, address, key = next(self._numbers), hello.address, hello.key
            credentials = self._make_credentials(key) if address else None
            if credentials is None:  # where the balancer has keys nothing travels in the clear
                address, key = "", b""
            server = PayloadServer(token, address, key, *(credentials or (b"", b"")))
            self.servers[token] = server
            worker = AdmittedWorker(peer, hello, server, PoolWorkerStats(now))
            self._named[hello.name] = self.workers[peer] = worker
            self._events.log_peer("join", "worker", hello.name)
            self.ask(worker)

    def ask(self, worker: AdmittedWorker) -> None:
        """Give a worker the job, or ask whether its source is open."""
        if worker.hello.run > self.run:
            return
        server = worker.server
        secret = b"" if server.public else server.secret  # of a pair the public key is enough
        message = structs.replace(
            self._opening, token=server.token, public=server.public, secret=secret
        )
        self.out.append((worker.peer, message))

    def ask_unopened(self) -> None:
        """Ask again those that have not opened the source; the message may be lost."""
        for worker in self.workers.values():
            if worker.opened is None and not worker.failure:
                self.ask(worker)

    def begin_run(self, run: int, now: float) -> None:
        """Let workers in that were started for the run that all trainers have begun.

        With the first of them those of earlier runs have ended; what these have said of the data
        is forgotten.
        """
        is_later, self.run = run > self.run, run
        newest = max((w.hello.run for w in self.workers.values() if w.hello.run <= run), default=-1)
        older = [w.hello.name for w in self.workers.values() if 0 <= w.hello.run < newest]
        self.end(older, now)
        if is_later:
            self.ask_unopened()
        if (older or is_later) and not self.has_open:
            self.source = None

    def end(self, names: Collection[str], now: float) -> None:
        """Forget workers that trainers have ended."""
        for name in names:
            if (worker := self._named.get(name)) is not None:
                self.lose(worker.peer, now, "leave", " (its trainer has ended it)")

    def ask_failed(self) -> None:
        """Let those try again that could not open the source: trainers have come again."""
        for worker in self.workers.values():
            worker.failure = ""
        self.refused = ""
        self.ask_unopened()

    # --- the data

    def open(
        self, peer: bytes, opened: JobOpened, counts: Collection[int], is_served: bool, now: float
    ) -> bool:
        """Take in a worker whose source is open; return whether it has said what the data are.

        counts: numbers of samples that trainers go on in, none where any will do. is_served: a
        trainer has had a part of the data.
        """
        worker = self.workers[peer]
        if opened.number != self._opening.number or worker.opened is not None:
            return False
        is_fixed = self.source is not None and (self.has_open or is_served)
        reason = self._describe_data_mismatch(opened, is_fixed) or describe_count_mismatch(
            counts, opened.count
        )
        if reason and (is_fixed or counts) and not worker.was_asked_again:
            # Those who said otherwise may have gone: what is sent to them shows it.
            worker.was_asked_again = True
            self.out += [(name, FreeParts(())) for name in self.workers if name != peer]
            self.ask(worker)
            return False
        source = self.source
        # Of what is said again the run goes on: it knows of which samples workers have died.
        if not (reason or is_fixed) and (source is None or source.opened != opened):
            try:
                source = ToldSource(opened, self._spec.resources)
            except ValueError as error:
                reason = str(error)
        if reason:
            self._refuse(peer, worker.hello.name, reason)
            self.lose(peer, now)
            return False
        # Its columns are the source's: of many workers they would take much.
        worker.opened, self.refused = structs.replace(opened, columns=()), ""
        name = worker.hello.name
        self._events.log("ready", ": worker %.200s has the data open", name, worker=name)
        self._pool.add_worker(peer, now, worker.hello.most_bytes)
        for failed in [*self.workers.values()]:  # the job can be done
            if failed.failure:
                self.turn_away(failed, failed.failure, now)
        is_new, self.source = source is not self.source, source
        if is_new:
            self._first_opener = worker.hello.name
        return is_new

    def _describe_data_mismatch(self, opened: JobOpened, is_fixed: bool) -> str:
        source = self.source
        if not is_fixed or source is None:
            return ""
        if (len(source), source.fingerprint) == (opened.count, opened.fingerprint):
            return ""
        return (
            "this worker's data or libraries differ from the others' (fingerprint "
            f"{opened.fingerprint:.80}, {opened.count} samples; the others have "
            f"{source.fingerprint}, {len(source)}, as worker {self._first_opener:.80} said, the "
            "first of them): install the same versions, and give it the same data"
        )

    def fail_to_open(self, peer: bytes, failed: JobNotOpened, now: float) -> None:
        """Turn a worker away that cannot open the source, if others can."""
        worker = self.workers[peer]
        if failed.number == self._opening.number and worker.opened is None:
            if self.has_open:
                self.turn_away(worker, failed.reason, now)
            else:
                worker.failure = failed.reason[:MAX_REASON] or "it cannot open the data"

    def refuse_data(self, count: int, now: float) -> None:
        """Turn all workers away: trainers go on in data of so many samples."""
        for worker in [*self.workers.values()]:
            if worker.opened is not None:
                reason = describe_count_mismatch((count,), worker.opened.count)
                self._refuse(worker.peer, worker.hello.name, reason)
                self.lose(worker.peer, now)
        self.source = None

    @property
    def failure(self) -> str:
        """Return why no worker is left that may do the job; "" while one may, or may come."""
        failed = [worker for worker in self.workers.values() if worker.failure]
        if not failed or len(failed) < len(self.workers):
            return ""
        suffix = f" (and so do {len(failed) - 1} others)" if len(failed) > 1 else ""
        return f"worker {failed[-1].hello.name}: {failed[-1].failure}{suffix}"

    @property
    def missing(self) -> str:
        """Return what is missing before a run can begin, "" for nothing."""
        if self.has_open:
            return ""
        missing = "a worker to open the data" if self.workers else "a worker to connect"
        return f"{missing}; {self.refused}" if self.refused else missing

    # --- leaving

    def turn_away(self, worker: AdmittedWorker, reason: str, now: float) -> None:
        """Send a worker away for good."""
        name, reason = worker.hello.name, reason[:MAX_REASON]
        self._refuse(worker.peer, name, f"this worker cannot do what others can: {reason}")
        self.lose(worker.peer, now)

    def _refuse(self, peer: bytes, name: str, reason: str) -> None:
        self.out.append((peer, PeerRejected(reason)))
        self._events.turned_away += 1
        self._events.last_refused.append(f"{name:.{MAX_NAME}}: {reason:.{MAX_REASON}}")
        self.refused = f"worker {name:.{MAX_NAME}} was refused: {reason:.{MAX_REASON}}"

    def lose(
        self, peer: bytes, now: float, event: str = "", why: str = "", has_died: bool = False
    ) -> None:
        """Forget a worker, which is gone; others do what it had. event: as in the log.

        has_died: perhaps of a sample: it was not ended, turned away, or begins anew.
        """
        worker = self.workers.pop(peer, None)
        if worker is None:
            return
        if self._named.get(worker.hello.name) is worker:
            del self._named[worker.hello.name]
        del self.servers[worker.server.token]
        self._pool.lose(peer, now, is_ended=not has_died)
        if event == "lost":
            self._events.lost, self._events.lost_at = self._events.lost + 1, now
            self._events.last_lost.append(f"{worker.hello.name:.{MAX_NAME}}{why}")
        if event:
            self._events.log_peer(event, "worker", worker.hello.name, why)


def describe_version_mismatch(version: str) -> str:
    """Return why a peer of a version of counterpoise cannot take part.

    The balancer's decides: who comes first must not.

    >>> describe_version_mismatch(VERSION)
    ''
    """
    if version == VERSION:
        return ""
    return (
        f"this peer has counterpoise {version:.{MAX_VERSION}}, and the balancer {VERSION}, which "
        f"decides: install {VERSION} here, or another version in the balancer and everywhere"
    )


def describe_count_mismatch(needed: Collection[int], count: int) -> str:
    """Return why trainers cannot go on in a worker's data, "" if they can.

    needed: the numbers of samples that they go by, none where any will do.
    """
    if not needed or count in needed:
        return ""
    return (
        f"this worker has {count} samples, and the trainer goes on in data of {min(needed)} (those "
        "of its ledger, or of which it has had a part): give it the data of then"
    )
