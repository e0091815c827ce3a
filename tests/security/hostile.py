"""A small cluster in one process that a hostile peer can talk to, and the frames it may say.

Honest workers and trainers are those of tests/balancer/job/cluster.py on a network without faults,
but everything between them is encoded and decoded. All follows from the seed.
"""

import hashlib
import heapq
import random
from dataclasses import dataclass, replace
from functools import partial

import msgpack
from msgspec import structs

from counterpoise.balancer.job.messages import JoinPool, RelayedPiece, WorkersAt
from counterpoise.balancer.parties.messages import JoinJob, ToTrainer
from counterpoise.balancer.protocol.messages import PeerRejected
from counterpoise.balancer.transport.wire import MAX_FRAMES, WireError, decode, encode
from tests.balancer.job import cluster
from tests.balancer.job.cluster import Setting
from tests.balancer.job.test_job import facts_of


class Small(Setting):
    """A job of two ranks and two workers, of which one serves nowhere; nobody dies."""

    def __init__(self, seed=0, workers=2):
        super().__init__(seed, faults=False)
        self.ranks, self.sharers, self.workers = 2, 1, workers
        self.lengths = [1 + n * 7 % 12 for n in range(40)]
        self.on_error, self.broken, self.killer, self.collates = "skip", frozenset({5}), -1, True
        self.plan = replace(self.plan, ranks=2, samples_per_step=8, seed=3)


JOB, LAYOUT = Small().job, Small().layout
MOST_STATE = 5_000  # things that a balancer of a trial remembers
# A trainer ignores what is none of these (loader/remote/inbox.py).
OF_TRAINERS = ToTrainer | WorkersAt | RelayedPiece


@dataclass(frozen=True, slots=True)
class Wired:
    """A message as it is on the wire: who says it, the header frame, the payload frames."""

    peer: bytes
    header: bytes
    payloads: tuple[bytes, ...] = ()


class Cluster(cluster.Cluster):
    """Two workers and two trainers at one job.

    heard: all that the balancer was told; told: all that it has said to others.
    """

    def __init__(self, seed=0, workers=2, ranks=2):
        self.heard, self.told, self.refused, self.rejected = [], [], 0, ""
        super().__init__(Small(seed, workers))
        if not ranks:
            self.trainers.clear()

    def step(self):
        """Let one thing happen; return whether the trainers still wait for something."""
        self.now, _, action = heapq.heappop(self._events)
        action()
        return not all(trainer.is_over for trainer in self.trainers.values())

    def run(self, disturb=lambda _: None, limit=100_000):
        """Run to the end, disturbed before every step; return what each rank was given."""
        for _ in range(limit):
            disturb(self)
            if not self.step():
                return self.digest()
        raise AssertionError(self.why_stuck())

    def handle(self, peer, message, frames=()):
        """Have a message go to the balancer that there is now."""
        wired = Wired(peer, encode(message), tuple(bytes(memoryview(f)) for f in frames))
        self.deliver(partial(self.tell, wired))

    def tell(self, wired):
        """Give the balancer one message off the wire; what is malformed goes no further."""
        self.heard.append(wired)
        try:
            assert 1 + len(wired.payloads) <= MAX_FRAMES
            message = decode(wired.header, len(wired.payloads))
        except WireError:
            self.refused += 1
            return
        self._send(self.jobs.handle(wired.peer, message, wired.payloads, self.now))

    @property
    def peers(self):
        """The names of the honest."""
        return [*self.workers, *(trainer.peer for trainer in self.trainers.values())]

    def forget_said(self):
        """Forget what was said, which a long run would keep."""
        self.heard.clear()
        self.told.clear()

    def digest(self):
        """Return what each rank was given, as one digest for each."""
        given = {
            key: [(facts_of(give.facts), batch) for give, batch in trainer.delivered]
            for key, trainer in self.trainers.items()
        }
        return {key: hashlib.sha256(repr(all_).encode()).hexdigest() for key, all_ in given.items()}

    def _send(self, sends):
        received = []
        for send in sends:
            header, frames = encode(send.message), tuple(map(bytes, send.payloads))
            self.told.append(Wired(send.peer, header, frames))
            if isinstance(send.message, PeerRejected) and send.peer in self.workers:
                self.rejected = send.message.reason  # what was said in its name
            elif send.peer in self.workers or isinstance(send.message, OF_TRAINERS):
                received.append(structs.replace(send, message=decode(header, len(frames))))
        super()._send(received)


# --- what a hostile peer says

ODD_INTEGERS = (
    0, 1, -1, 2, 127, 255, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 63,
)  # fmt: skip
ODD_TEXTS = (
    "", "w0", "honest", "os:system", "pipe:cat /etc/passwd", "../../etc/passwd", "\0", "\ud800",
    "a" * 5000, "{", "null", "[]", "[" * 3000, '{"plan": null}', "NaN", "1e999",
)  # fmt: skip
ODD_BYTES = (
    b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff", b"\x91" * 3000, b"\x81" * 3000, b"\xc9\xff\xff\xff\xff\x01", b"\xc1",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xcf" + b"\xff" * 8, b"\x80", b"\x90", b"\xc0",
)  # fmt: skip


class Mutator:
    """Makes hostile frames out of recorded ones: bytes changed, or fields."""

    def __init__(self, corpus, seed):
        kinds = {}
        for wired in corpus:
            kinds.setdefault(msgpack.unpackb(wired.header)[1], []).append(wired)
        self.kinds = list(kinds.values())
        self.random = random.Random(seed)

    def frame(self):
        """Return (header, payload frames)."""
        wired = self._recorded()
        header = self.random.choice((self._bytes_changed, self.fields_changed))(wired.header)
        payloads = wired.payloads
        if self.random.random() < 0.1:
            header = wired.header
        if self.random.random() < 0.1:
            payloads = (b"x" * self.random.randrange(100),) * self.random.randrange(4)
        return header, payloads

    def _recorded(self):
        return self.random.choice(self.random.choice(self.kinds))

    def _bytes_changed(self, header):
        data = bytearray(header)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(data) + 1)
            to = min(len(data), at + self.random.randrange(1, 9))
            match self.random.randrange(5):
                case 0:
                    data[at:to] = self.random.randbytes(to - at)
                case 1:
                    del data[at:to]
                case 2:
                    data[at:at] = self.random.choice(ODD_BYTES)
                case 3:
                    other = self._recorded().header
                    data[at:] = other[self.random.randrange(len(other)) :]
                case _:
                    del data[at:]
        return bytes(data)

    def fields_changed(self, header):
        parts = msgpack.unpackb(header)
        for _ in range(self.random.randrange(1, 3)):
            at = self.random.randrange(len(parts)) if self.random.random() < 0.1 else -1
            at = self.random.randrange(2, len(parts)) if at < 0 and len(parts) > 2 else at
            parts[at] = self._odd(parts[at])
        if self.random.random() < 0.05:
            parts = parts[: self.random.randrange(len(parts) + 1)]
        return msgpack.packb(parts, unicode_errors="surrogatepass")

    def _odd(self, value):
        if isinstance(value, list) and value and self.random.random() < 0.8:
            at = self.random.randrange(len(value))
            return [*value[:at], self._odd(value[at]), *value[at + 1 :]] * self.random.choice(
                (1, 1, 3)
            )
        if isinstance(value, int) and not isinstance(value, bool) and self.random.random() < 0.8:
            near = max(-(1 << 63), value + self.random.randrange(-2, 3))
            return near if self.random.random() < 0.5 else self._integer()
        kinds = (self._integer, self._text, self._binary, lambda: None, list, lambda: 1.5)
        return self.random.choice(kinds)()

    def _integer(self):
        return self.random.choice(ODD_INTEGERS) if self.random.random() < 0.9 else 3

    def _text(self):
        return self.random.choice(ODD_TEXTS)

    def _binary(self):
        return self.random.choice(ODD_BYTES)


def corpus(seed=0):
    """Return what the balancer hears in an undisturbed run, each kind as often as it comes."""
    cluster = Cluster(seed)
    cluster.run()
    return cluster.heard


def introduces(wired):
    """Whether a message is a well-formed introduction, which only a party with a key can make."""
    try:
        message = decode(wired.header, len(wired.payloads))
    except WireError:
        return False
    return isinstance(message, JoinPool | JoinJob)


def state_size(jobs):
    """How many things a balancer's jobs remember."""
    return sum(_size_of(job) for job in jobs.jobs.values())


def _size_of(job):
    parties, pool, admission = job.parties, job.pool, job.admission
    seats = parties._seats
    tables = [
        seats.peers, seats.gone, seats._waiting, parties._leaving,
        parties._labels._steps, parties.changes,
        admission.workers, admission._named, admission.servers, admission.out,
        job.relay._questions, pool._tasks, pool._keepers, pool.deaths,
    ]  # fmt: skip
    for worker in pool.workers.values():
        tables += [worker.givings, worker.kept_parts, worker.freeing, worker.dropping]
    return sum(map(len, tables))
