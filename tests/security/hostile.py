"""A small cluster in one process that a hostile peer can talk to, and the frames it may say.

Honest workers and ranks are the real sessions, everything between them is encoded and decoded. The
clock and the order of events come from the seed, so that every run can be repeated.
"""

import hashlib
import json
import random
from collections import deque
from dataclasses import dataclass

import msgpack

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.peers import admission
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import RankHello, Welcome, WorkerHello, WorkerReady
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import DecodeDone, ProbeDone
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.balancer.protocol.worker_session import WorkerSession
from counterpoise.balancer.transport.wire import MAX_FRAMES, WireError, decode, encode
from counterpoise.workers.codec.frames import encode as encode_sample

# Room for an order is made when a worker says how many samples there are: here, not too much.
admission.MAX_SAMPLES = 1 << 20
COUNT = 40
TICK_S = 0.02
JOB = JobSpec(
    source={"source": "tar", "pattern": ["*.tar"], "transform": None},
    plan=PlanConfig(
        ranks=2,
        samples_per_step=8,
        accumulate=2,
        resources=("tokens",),
        budgets=(None,),
        grouping="fixed",
        partition="greedy",
        batch_size=2,
        seed=3,
    ),
)


@dataclass(frozen=True, slots=True)
class Wired:
    """A message as it is on the wire: who says it, the header frame, the payload frames."""

    peer: bytes
    header: bytes
    payloads: tuple[bytes, ...] = ()


class Cluster:
    """Two workers and two ranks at one job; `heard` is all that the coordinator was told."""

    def __init__(self, seed=0, job=JOB, workers=2, honest_ranks=True):
        self.random = random.Random(seed)
        self.now = 0.0
        self.coordinator = Coordinator()
        self.workers = {b"worker-%d" % n: WorkerSession() for n in range(workers)}
        self.ranks = {
            b"rank-%d" % n: RankSession((n,), to_json(job), 2, job.microbatches)
            for n in (0, 1)
            if honest_ranks
        }
        self.heard = []
        self.refused = 0
        self.delivered = {peer: [] for peer in self.ranks}
        self.ends = set()
        self._inbound = {peer: deque() for peer in (*self.workers, *self.ranks)}
        for n, peer in enumerate(self.workers):
            self._say(peer, WorkerHello(f"w{n}", 5, "host", n))
        for peer, session in self.ranks.items():
            self._say(peer, session.hello)
            for message in session.begin(0, EpochPosition(0, 0, 0, 0, "")):
                self._say(peer, message)

    def step(self):
        """Let one thing happen; return whether the ranks still wait for something."""
        self.now += TICK_S
        self._send(self.coordinator.tick(self.now))
        waiting = [peer for peer, queue in self._inbound.items() if queue]
        if waiting:
            self.tell(self._inbound[self.random.choice(waiting)].popleft())
        else:
            self._work()
            self._train()
        return len(self.ends) < len(self.ranks) and not self.trouble

    def run(self, disturb=lambda _: None, limit=100_000):
        """Run to the end, disturbed before every step; return each rank's digest."""
        for _ in range(limit):
            disturb(self)
            if not self.step():
                return self.digest()
        raise AssertionError(f"stuck: {self.ends}")

    def tell(self, wired):
        """Give the coordinator one message off the wire; what is malformed goes no further."""
        self.heard.append(wired)
        try:
            assert 1 + len(wired.payloads) <= MAX_FRAMES
            message = decode(wired.header, len(wired.payloads))
        except WireError:
            self.refused += 1
            return
        self._send(self.coordinator.handle(wired.peer, message, wired.payloads, self.now))

    @property
    def trouble(self):
        return next((rank.failure for rank in self.ranks.values() if rank.failure), "")

    def digest(self):
        return {
            peer: hashlib.sha256(repr(d).encode()).hexdigest() for peer, d in self.delivered.items()
        }

    def _say(self, peer, message, *payloads):
        self._inbound[peer].append(Wired(peer, encode(message), payloads))

    def _send(self, effects):
        for effect in effects:
            message = decode(encode(effect.message), len(effect.payloads))
            if effect.peer in self.workers:
                action = self.workers[effect.peer].handle(message)
                if isinstance(action, Welcome):
                    self._say(effect.peer, WorkerReady(COUNT, "honest", action.number))
            elif effect.peer in self.ranks:
                self.ranks[effect.peer].handle(message, effect.payloads)

    def _work(self):
        for peer, session in self.workers.items():
            task = session.tasks.popleft() if session.tasks else None
            if task is None:
                continue
            index, ordinal = task.ref.index, task.ref.ordinal
            key = f"k{index}"
            if task.kind == "probe":
                self._say(peer, ProbeDone(task.lease, (Probed(ordinal, key, (1 + index,), 64),)))
            else:
                header, _ = encode_sample({"n": index, "bytes": b"payload"})
                payload = b"%d/%d " % (task.epoch, index)
                done = DecodeDone(
                    task.lease, (DecodedItem(ordinal, key, (), msgpack.packb(header), 0, 0),)
                )
                self._say(peer, done, payload.ljust(64, b"."))

    def _train(self):
        for peer, session in self.ranks.items():
            for message in session.new_requests() if session.state == "running" else []:
                self._say(peer, message)
            arrival = session.peek()
            if arrival is not None:
                messages = session.release(arrival)
                batch = arrival.batch
                keys = tuple(item.key for item in batch.items)
                self.delivered[peer].append((batch.step, batch.microbatch, keys, arrival.payloads))
                for message in messages:
                    self._say(peer, message)
            elif session.at_end():
                self.ends.add(peer)
            elif self.random.random() < 0.05:
                for message in session.unanswered():
                    self._say(peer, message)


# --- what a hostile peer says

ODD_INTEGERS = (
    0,
    1,
    -1,
    2,
    127,
    255,
    1 << 16,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 63,
)
ODD_TEXTS = (
    "", "w0", "honest", "os:system", "pipe:cat /etc/passwd", "../../etc/passwd", "\0", "\ud800",
    "a" * 5000, "{", "null", "[]", "[" * 3000, '{"plan": null}', "NaN", "1e999",
)  # fmt: skip
ODD_SETTINGS = (
    0, -1, 1, 1.5, 1 << 40, 10**30, "x", None, [], {}, [1], True, float("nan"),
    "balanced", "isf", "auto", "epoch", "refuse", "window",
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
        if isinstance(value, str) and value.startswith("{") and self.random.random() < 0.9:
            return self.odd_json(value)
        if isinstance(value, int) and not isinstance(value, bool) and self.random.random() < 0.8:
            near = max(-(1 << 63), value + self.random.randrange(-2, 3))
            return near if self.random.random() < 0.5 else self._integer()
        kinds = (self._integer, self._text, self._binary, lambda: None, list, lambda: 1.5)
        return self.random.choice(kinds)()

    def odd_json(self, text):
        """Change one value of a job, anywhere in it."""
        try:
            job = json.loads(text)
        except ValueError:
            return self._text()
        place = job
        while True:
            if not place:
                break
            name = self.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[name]
            if isinstance(inner, dict | list) and inner and self.random.random() < 0.8:
                place = inner
                continue
            place[name] = self.random.choice((*ODD_SETTINGS, self._text()))
            if self.random.random() < 0.05:
                del place[name]
            break
        return json.dumps(job)

    def _integer(self):
        return self.random.choice(ODD_INTEGERS) if self.random.random() < 0.9 else 3

    def _text(self):
        return self.random.choice(ODD_TEXTS)

    def _binary(self):
        return self.random.choice(ODD_BYTES)


def corpus(seed=0):
    """Return what the coordinator hears in an undisturbed run, each kind as often as it comes."""
    cluster = Cluster(seed)
    cluster.run()
    return cluster.heard


def introduces(wired):
    """Whether a message is a well-formed introduction, which only a party with a key can make."""
    try:
        message = decode(wired.header, len(wired.payloads))
    except WireError:
        return False
    return isinstance(message, WorkerHello | RankHello)
