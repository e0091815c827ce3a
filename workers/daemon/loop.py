"""Runs a worker: takes leases from the balancer, works on them sample by sample, sends the results.

The handler does the work on a sample (source_handler.py). A thread with a socket of its own sends
heartbeats, since a decode can take long.
"""

import _thread
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq
from msgspec import structs

from ...balancer.protocol.messages import (
    Bye,
    Message,
    PeerRejected,
    SampleFailed,
    UnknownPeer,
    Welcome,
    WorkerBye,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from ...balancer.protocol.parts import DecodedItem, Probed
from ...balancer.protocol.payload_messages import (
    DecodeDone,
    PayloadsFreed,
    ServePayloads,
    StopServing,
)
from ...balancer.protocol.status_messages import MICROSECONDS
from ...balancer.protocol.trace_messages import StartTrace
from ...balancer.protocol.transitions import SERVING
from ...balancer.protocol.worker_session import RepeatReady, SampleTask, WorkerSession
from ...balancer.server.malloc import IDLE_S, IdleTrimmer, keep_freed_memory
from ...balancer.server.spans import SpanRecorder
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.sockets import LINGER_MS, Link
from ..sources.failures import describe_error, kind_of, reason_of
from ..sources.fingerprint import software
from ..sources.interface import SampleError
from .heartbeats import Identity, WorkerActivity, send_heartbeats
from .payloads import Payloads
from .results import Decoded, LeaseResults
from .source_handler import SourceHandler

# A hello without an answer is sent again after this time.
HELLO_RETRY_S = 5.0
# Between samples that are decoded more quickly, messages are looked for this often.
LOOK_S = 0.001
# What payloads that are pulled lay in is given back after this time without work: not while a
# trainer is busy with a long step, since new pages take several times as long as filling them.
REST_S = 10.0
# A wait for work ends at least this often, to check whether the worker should end.
IDLE_MS = 500


def run_worker(
    endpoint: str,
    identity: Identity,
    handler: SourceHandler,
    stop: Callable[[], bool] = lambda: False,
    keys: PeerKeys | None = None,
    payloads: Payloads | None = None,
) -> str:
    """Work until the balancer ends the worker or `stop` returns true; return why, empty if well.

    With `keys` the balancer must be the one that they name. `payloads` says how payloads travel,
    inline if it is left out.
    """
    keep_freed_memory()
    with open_worker(endpoint, identity, handler, keys, payloads) as worker:
        return worker.work(stop)


@contextmanager
def open_worker(
    endpoint: str,
    identity: Identity,
    handler: SourceHandler,
    keys: PeerKeys | None = None,
    payloads: Payloads | None = None,
) -> "Iterator[JobWorker]":
    """Give a worker that has said hello and sends heartbeats; the arguments are `run_worker`'s."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    activity, ended = WorkerActivity(), threading.Event()
    arguments = context, endpoint, identity, activity, keys, ended
    try:
        link = Link(context, endpoint, identity.routing_id, keys)
        try:
            worker = JobWorker(link, identity, handler, activity, payloads or Payloads())
            worker.say_hello()
            # Only now: an address that cannot be connected to has been an error of this thread, and
            # the hello is on its way meanwhile. No Thread: its start would wait for a core.
            _thread.start_new_thread(send_heartbeats, arguments)
            yield worker
        finally:
            link.close(LINGER_MS["worker"])
    finally:
        ended.set()
        context.term()


class JobWorker:
    """A worker at one job: `look` for messages, `work_on` a piece of what is leased, `rest`."""

    def __init__(
        self,
        link: Link,
        identity: Identity,
        handler: SourceHandler,
        activity: WorkerActivity,
        payloads: Payloads,
    ) -> None:
        self.link = link
        self.payloads, self.way = payloads, payloads.way
        self.activity = activity
        self.identity = identity
        self.handler = handler
        self.session = WorkerSession()
        self.results = LeaseResults()
        self.looked = self.now = time.monotonic()
        self.hello_sent = 0.0
        self.opened: WorkerReady | WorkerFailed | None = None
        self.trimmer = IdleTrimmer()
        self.trace = SpanRecorder()

    has_work = property(lambda self: bool(self.session.tasks))
    is_serving = property(lambda self: self.session.state == SERVING)

    def keep_at_most(self, nbytes: int) -> None:
        """Keep payloads of at most so many bytes."""
        self.payloads.store.limit_bytes = nbytes

    def work(self, stop: Callable[[], bool]) -> str:
        """Work until the balancer ends this worker or `stop` returns true; return why."""
        while not stop():
            if (end := self.look()) is not None:
                return end
            if self.session.tasks:
                self.work_on()
            elif reason := self.rest(not self.link.poller.poll(IDLE_MS)):
                return reason
        self.leave()
        return ""

    def look(self) -> str | None:
        """Handle messages, if it is time; return why this worker has ended, None if it has not."""
        # Looking for messages costs as much as some samples.
        if not self.session.tasks or self.now > self.looked + LOOK_S:
            end = self._drain()
            if end is not None:
                return end.reason if isinstance(end, PeerRejected) else ""
        tasks = self.session.tasks
        if (not tasks or tasks[0].lease != self.results.lease) and self.results:
            self._send_results()
        if not tasks:
            self.handler.expect(tasks)
        return None

    def work_on(self) -> None:
        """Work on the oldest lease for a while."""
        tasks = self.session.tasks
        # After results are sent: what is begun now may end the process.
        self.handler.expect(tasks)
        if tasks[0].kind == "probe" and self.handler.looks_up:
            self._look_up(self.session.next_lease())
        else:
            self._work_on_lease()

    def leave(self) -> None:
        """Say goodbye, after what is done has been sent."""
        self._send_results()
        self._send(WorkerBye())

    def rest(self, idle: bool) -> str:
        """Do what is due without work; return why waiting longer is useless, empty if it is not.

        `idle`: no message has come for a while.
        """
        self.trimmer.trim_if_idle(time.monotonic())
        if idle and (refusal := self.link.handshakes.rejection_reason()):
            return refusal
        if self.session.state == "joining" and time.monotonic() > self.hello_sent + HELLO_RETRY_S:
            self.say_hello()
        return ""

    def say_hello(self) -> None:
        """Introduce this worker to the balancer."""
        self.hello_sent = time.monotonic()
        who, host = self.identity, sockets.gethostname()
        hello = WorkerHello(who.name, who.incarnation, host, who.slot, software())
        carried = self.payloads
        self._send(
            structs.replace(hello, transport=carried.way, address=carried.address, key=carried.key)
        )

    def _drain(self) -> PeerRejected | Bye | None:
        # The heartbeats' thread hears that the balancer forgot us; this one owns the session.
        if self.activity.forgotten.is_set():
            self.activity.forgotten.clear()
            if self.session.handle(UnknownPeer()) is not None:
                self.payloads.store.free_all()
                self.say_hello()
        self.looked = self.now = time.monotonic()
        if (spans := self.trace.take(self.now)) is not None:
            self._send(spans)
        while (received := self.link.receive()) is not None:
            if isinstance(received[0], StartTrace):
                wall_us = round(MICROSECONDS * time.time())
                self._send(self.trace.start(received[0], time.monotonic(), wall_us))
                continue
            action = self.session.handle(received[0])
            if isinstance(action, Welcome):
                self._open(action.job, action.number)
            elif isinstance(action, PayloadsFreed):
                self.payloads.store.free(action.serials)
            elif isinstance(action, ServePayloads | StopServing):
                self.payloads.carry(action)
            elif isinstance(action, RepeatReady) and self.opened is not None:
                self._send(self.opened)
            elif isinstance(action, PeerRejected | Bye):
                return action
        return None

    def _open(self, job: str, number: int) -> None:
        """Open a source and say so."""
        self.results.clear()
        self.payloads.store.free_all()
        self.opened = self._try_open(job, number)
        self._send(self.opened)

    def _try_open(self, job: str, number: int) -> WorkerReady | WorkerFailed:
        try:
            count, fingerprint = self.handler.open(job)
            return WorkerReady(count, fingerprint, number)
        except Exception as error:
            return WorkerFailed(describe_error(error), number)

    def _look_up(self, tasks: Sequence[SampleTask]) -> None:
        """Measure what is left of a lease: nothing but a table is looked at."""
        began = time.monotonic()
        found = self.handler.look_up([task.ref for task in tasks])
        self.now = time.monotonic()
        for probed in found:
            self.results.add_probed(tasks[0].lease, probed, (self.now - began) / len(found))

    def _work_on_lease(self) -> None:
        """Work on samples of the oldest lease, until it is time to look for messages again."""
        tasks, lease = self.session.tasks, self.session.tasks[0].lease
        try:
            while True:
                self._work_on(tasks.popleft())
                if self.now > self.looked + LOOK_S or not tasks or tasks[0].lease != lease:
                    return
                self.handler.expect(tasks)
        finally:
            self.activity.end(self.now)

    def _work_on(self, task: SampleTask) -> None:
        ref = task.ref
        work = self.handler.probe if task.kind == "probe" else self.handler.decode
        began = time.monotonic()
        self.activity.begin(task.kind, (task.lease, ref.ordinal), began)
        try:
            result = work(ref, task.epoch)
        except Exception as error:
            self._send_failure(task, error)
        else:
            self._keep_result(task, result, began)
        finally:
            self.now = time.monotonic()
            if self.trace.until is not None:
                self.trace.add(task.kind, began, self.now, (), (ref.ordinal,))

    def _keep_result(self, task: SampleTask, result: Probed | Decoded, began: float) -> None:
        """Send a result with others of its lease, or at once."""
        results = self.results
        if isinstance(result, Probed):
            results.add_probed(task.lease, result, time.monotonic() - began)
            return
        serial, payload = self.payloads.place(result.buffers)
        nbytes = len(payload) if serial else 0
        item = DecodedItem(task.ref.ordinal, result.key, result.cost, result.header, serial, nbytes)
        took_s = max(time.monotonic() - began, result.load_s)
        if results.add_decoded(task.lease, item, None if serial else payload, took_s):
            self._send_results()

    def _send_results(self) -> None:
        for message, payloads in self.results.take():
            self._send(message, *payloads)
            if isinstance(message, DecodeDone):
                # What was sent is freed later, and counts as long as it is not given back.
                self.trimmer.note_payload(self.now, IDLE_S if payloads else REST_S)

    def _send_failure(self, task: SampleTask, error: Exception) -> None:
        ends_run = kind_of(error) == "io"
        try:
            key = error.key if isinstance(error, SampleError) else self.handler.key(task.ref)
        except Exception as unnamed:  # says nothing about the sample: as in a local loop
            key, error, ends_run = str(task.ref.index), unnamed, True
        failed = SampleFailed(
            task.lease,
            task.ref.ordinal,
            key,
            reason_of(error),
            ends_run,
            self.handler.file_of(task.ref),
        )
        self._send(failed)

    def _send(self, message: Message, *payloads: object) -> None:
        self.link.send(message, payloads)
