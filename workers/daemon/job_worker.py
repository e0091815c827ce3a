"""Works for one job of a balancer: makes parts of microbatches, and keeps them for trainers.

Theory of operation. The worker says hello until it is given the job (OpenJob), opens its source and
says what planning has to know. Then it makes the parts that it is given, one after the other
(`PoolSession` says which), keeps their frames until the balancer frees them, and looks for messages
in between. A sample, or opening the source, can take long: a thread sends heartbeats meanwhile. A
balancer that does not know the worker is said hello again: nothing is kept then.
"""

import _thread
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from msgspec import structs

from ...balancer.job.messages import (
    JobNotOpened,
    JobOpened,
    JoinPool,
    LeavePool,
    NameSamples,
    OpenJob,
    PullFrames,
    SampleNames,
)  # fmt: skip
from ...balancer.job.told_source import pack_column
from ...balancer.pool.messages import (
    COSTS,
    ERROR_CHARACTERS,
    TELL_S,
    DoPart,
    FreeParts,
    PoolBeat,
)  # fmt: skip
from ...balancer.pool.worker_session import PoolSession
from ...balancer.protocol.job_spec import JobSpec, from_json
from ...balancer.protocol.messages import Bye, Message, PeerRejected, UnknownPeer
from ...balancer.protocol.trace_messages import MICROSECONDS, StartTrace
from ...balancer.run.tasks import TASK_HEAD
from ...balancer.server.spans import SpanRecorder
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.sockets import LINGER_MS, Link
from ..arena.malloc import release_freed_memory
from ..codec.batches import encode_batch
from ..collate.described import read_layout
from ..collate.labels import count_batch_label_tokens
from ..planned.parts import Encode, PartDone, do_part
from ..planned.reader import Collate, PlannedReader
from ..serving.frame_store import FrameStore
from ..serving.server import PullServer
from ..sources.failures import describe_error
from ..sources.interface import Source

# A hello that is not answered is sent again after HELLO_S, or REJOIN_S if the balancer answers that
# it does not know this worker: of several such answers one counts.
HELLO_S, REJOIN_S, BEAT_S = 5.0, 1.0, 1.0
# Between parts that are made more quickly, messages are looked for this often.
LOOK_S = 0.001
# Without messages it looks this often whether there is anything to do.
IDLE_MS = 100
# What frames lay in is given back after this time without work: new pages take several times as
# long as filling them.
REST_S = 10.0
# The part of what this worker may keep that samples have which were loaded to be measured.
MEASURED_PART = 4


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """A worker of one job.

    peer: its name as a peer of the job, see transport/naming.py. hello: its first message, but for
    most_bytes. open_source: returns the source that a job describes. server: where trainers pull
    frames of a FrameStore; without one the balancer relays them. threads: load samples side by
    side. collate: of a job whose workers have its collate function, since its trainer has started
    them on its own host. encode: makes frames of a batch; encode_local, there. count: takes each
    part, and what became of it.
    """

    peer: bytes
    hello: JoinPool
    open_source: Callable[[dict[str, Any]], Source]
    server: PullServer | None = None
    threads: int = 1
    collate: Collate | None = None
    encode: Encode = encode_batch
    count: Callable[[DoPart, PartDone], None] | None = None


class RemoteWorker:
    """A worker at one job: `look` for messages, `make_part`, `rest`; see jobs.py.

    way: how its frames travel, as text. now: when it last looked for messages, or made a part.
    """

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        self.link, self.way = link, setup.hello.transport
        self.leaving = False  # it is given no other parts
        self.now = time.monotonic()
        self.store = FrameStore() if setup.server is None else setup.server.store
        self._setup = setup
        self._most_bytes = 0
        self._session = PoolSession()
        self._lock = threading.Lock()  # of the session, and of what beats say
        # Held while the link is used: while a part is made, or the source opened, it is free.
        self.using_link = threading.RLock()
        self._reader: PlannedReader | None = None
        self._progress = [0]
        self._opening: OpenJob | None = None
        self._opened: JobOpened | JobNotOpened | None = None
        self._tried_at = -math.inf
        # Said hello then, and due again: never while the balancer knows this worker.
        self._joined_at, self._join_at = -math.inf, -math.inf
        self._looked = self._told_at = self._beat_at = -math.inf
        self._serial = 0
        self._busy_s, self._began = 0.0, math.inf
        self._usual_s = 0.0  # that a part takes, the longest of late
        self._release_at = math.inf
        self._trace = SpanRecorder()

    # --- what JobsWorker asks for

    @property
    def has_work(self) -> bool:
        """Return whether there is a part to make."""
        return self._session.has_work

    @property
    def is_serving(self) -> bool:
        """Return whether the balancer has this worker in its pool, as far as is known here."""
        return math.isinf(self._join_at) and self._join_at > 0

    def keep_at_most(self, nbytes: int) -> None:
        """Tell the balancer, with hellos and heartbeats, that `nbytes` bytes may be kept."""
        self._most_bytes = nbytes

    def look(self) -> str | None:
        """Handle messages, if it is time; return why this worker has ended, None if it has not."""
        if self.has_work and self.now <= self._looked + LOOK_S:
            return None
        with self.using_link:
            return self._look()

    def _look(self) -> str | None:
        self._looked = self.now = time.monotonic()
        self._beat_if_due()
        if (spans := self._trace.take(self.now)) is not None:
            self.link.send(spans)
        while (received := self.link.receive()) is not None:
            if (end := self._take(received[0])) is not None:
                return end
        if not self.has_work:
            self._say()
        if self.now >= self._join_at:
            self._joined_at, self._join_at = self.now, self.now + HELLO_S
            self.link.send(structs.replace(self._setup.hello, most_bytes=self._most_bytes))
        return None

    def make_part(self) -> None:
        """Make the next part."""
        began = time.monotonic()
        with self._lock:
            part, self._began = self._session.next_part(), began
        assert part is not None
        assert self._reader is not None
        self._serial += 1
        answer, frames = do_part(self._reader, part, self._serial, self._setup.encode)
        self.now = time.monotonic()
        if frames:
            self.store.keep(self._serial, frames)
            self._release_at = self.now + REST_S
        with self._lock:
            self._session.finish(answer)
            self._busy_s, self._began = self._busy_s + self.now - began, math.inf
        if self._setup.count is not None:
            self._setup.count(part, answer)
        if self._trace.until is not None:
            kind = "measure" if part.form == COSTS else "load"
            self._trace.add(kind, began, self.now, (), part.task[TASK_HEAD:])
        # What was made is told together if the next part will be made in that time, too.
        self._usual_s = max(self.now - began, 0.9 * self._usual_s)
        if not self.has_work or self.now + self._usual_s > self._told_at + TELL_S:
            with self.using_link:
                self._say()

    def rest(self, idle: bool) -> str:
        """Do what is due without work; return why waiting longer is useless, empty if it is not.

        `idle`: no message has come for a while.
        """
        if time.monotonic() >= self._release_at:
            release_freed_memory()  # and again, as trainers may still have pulled
            self._release_at += REST_S
        return self.link.handshakes.rejection_reason() if idle else ""

    def leave(self) -> None:
        """Take leave of the balancer: what this worker has is made elsewhere."""
        with self.using_link:
            self.link.send(LeavePool())

    def close(self) -> None:
        """End the threads, and let the source go with its files."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- messages

    def _take(self, message: Message) -> str | None:
        """Take a message; return why this worker has ended, None if it has not."""
        match message:
            case DoPart() | FreeParts() if self._reader is not None:
                with self._lock:
                    self._session.take(message)
            case PullFrames() if self.is_serving:  # else it is asked for what it had before
                self.link.send(*self.store.answer(message))
            case NameSamples(indexes) if self._reader is not None:
                self.link.send(SampleNames(indexes, tuple(map(self._reader.key, indexes))))
            case OpenJob():
                self._open(message)
            case UnknownPeer():
                self._forget()
            case StartTrace():
                wall_us = round(MICROSECONDS * time.time())
                self.link.send(self._trace.start(message, time.monotonic(), wall_us))
            case PeerRejected(reason):
                return reason
            case Bye():
                self.leave()
                return ""
        return None

    def _say(self) -> None:
        """Free what is not wanted any more, and say what is to be said."""
        self.store.free(self._session.freed)
        self._session.freed.clear()
        self.link.send_together(self._session.take_messages())
        self._told_at = self.now

    def _forget(self) -> None:
        """Join a balancer again that does not know this worker, once for several answers."""
        if not self.is_serving or self.now >= self._joined_at + REJOIN_S:
            self._reset()
            self._join_at = self._joined_at + REJOIN_S

    def _reset(self) -> None:
        with self._lock:
            self._session.reset()
        self._say()

    # --- heartbeats

    def send_beats(self, ended: threading.Event) -> None:
        """Send heartbeats while a part is made, until the worker has ended: in another thread."""
        while not ended.wait(BEAT_S):
            with self.using_link:
                if not ended.is_set():
                    self._beat_if_due()

    def _beat_if_due(self) -> None:
        now = time.monotonic()
        if self.is_serving and now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self.link.send(self.beat())

    def beat(self) -> PoolBeat:
        """Return the heartbeat."""
        with self._lock:
            # None or several are in work: -1.
            self._session.begin_sample(max(0, self._progress[0]) - 1)
            beat = self._session.beat(self.leaving)
            busy_s = self._busy_s + max(0.0, time.monotonic() - self._began)
        times = {"busy_ms": int(1000 * busy_s), "cpu_ms": round(1000 * time.process_time())}
        return structs.replace(beat, most_bytes=self._most_bytes, **times)

    # --- the job

    def _open(self, message: OpenJob) -> None:
        """Open the source of a job, unless it is open, and say so."""
        self._join_at = math.inf
        last, self._opening = self._opening, message
        # One that has failed is tried again, but not for each question that came meanwhile.
        if message != last or (self._reader is None and self.now > self._tried_at):
            self._reset()
            job_is_new = last is None or (last.job, last.layout) != (message.job, message.layout)
            if self._reader is None or job_is_new:
                self.close()
                self.using_link.release()  # of `look`
                try:
                    self._opened, self._tried_at = self._try_open(message), time.monotonic()
                finally:
                    self.using_link.acquire()
            self.store.token = message.token
            if self._setup.server is not None:
                self._setup.server.admit(message.public, message.secret)
        assert self._opened is not None
        self.link.send(structs.replace(self._opened, number=message.number))

    def _try_open(self, message: OpenJob) -> JobOpened | JobNotOpened:
        try:
            job = from_json(message.job)
            source = self._setup.open_source(job.source)
            self._reader = self._new_reader(job, json.loads(message.layout), source)
            columns = source.known_costs(job.resources) or ()
            return JobOpened(
                message.number, len(source), source.fingerprint(),
                tuple(pack_column(np.asarray(column)) for column in columns),
                source.decode_first,
                source.names_samples,
            )  # fmt: skip
        except Exception as error:
            self.close()
            return JobNotOpened(message.number, describe_error(error)[:ERROR_CHARACTERS])

    def _new_reader(self, job: JobSpec, layout: dict[str, Any], source: Source) -> PlannedReader:
        has_collate = layout.get("kind") == "workers"
        collate = self._setup.collate if has_collate else read_layout(layout)
        if has_collate and collate is None:
            raise ValueError(
                "the job's batches are collated by workers with a function that this one does not "
                "have: only a trainer's own workers have it"
            )
        reader = PlannedReader(
            source, source, job.resources, job.plan.seed, collate or list, job.on_error == "skip",
            bool(layout.get("takes_empty")), has_collate, job.shift_labels,
            count_batch_label_tokens if job.counts_batches else None, self._setup.threads,
        )  # fmt: skip
        reader.restore()
        reader.progress, reader.upcoming = self._progress, self._session.upcoming
        if source.decode_first:
            reader.keep_samples(self._most_bytes // MEASURED_PART)
        return reader


@contextmanager
def open_remote_worker(
    endpoint: str, setup: WorkerSetup, keys: PeerKeys | None = None
) -> Iterator[RemoteWorker]:
    """Give a worker that is connected to a balancer, and sends heartbeats once it is known there.

    With `keys` the balancer must be the one that they name.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ended = threading.Event()
    try:
        link = Link(context, endpoint, setup.peer, keys)
        worker = RemoteWorker(link, setup)
        try:
            # No Thread: its start would wait for a core.
            _thread.start_new_thread(worker.send_beats, (ended,))
            yield worker
        finally:
            ended.set()
            with worker.using_link:
                link.close(LINGER_MS["worker"])
            worker.close()
    finally:
        context.term()


def run_remote_worker(endpoint: str, setup: WorkerSetup) -> str:
    """Work for one job until the balancer ends the worker; return why, empty if well.

    What the hello of `setup` says that it may keep it keeps.
    """
    with open_remote_worker(endpoint, setup) as worker:
        worker.keep_at_most(setup.hello.most_bytes)
        while True:
            worker.now = max(worker.now, time.monotonic())
            if (end := worker.look()) is not None:
                return end
            if worker.has_work:
                worker.make_part()
            else:
                with worker.using_link:
                    idle = not worker.link.poller.poll(IDLE_MS)
                if reason := worker.rest(idle):
                    return reason
