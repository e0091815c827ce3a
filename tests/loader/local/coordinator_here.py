"""Runs coordinator and sessions in this process: what local loops are compared with.

They are the same as elsewhere, joined by function calls. Nothing is prefetched: samples are
measured and decoded while the caller waits.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.status_report import waiting_reason
from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Message,
    RankBye,
    SampleFailed,
    Welcome,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, Probed, Ready
from counterpoise.balancer.protocol.payload_messages import DecodeDone, ProbeDone
from counterpoise.balancer.protocol.rank_session import Arrival, RankSession
from counterpoise.balancer.protocol.worker_session import SampleTask, WorkerSession
from counterpoise.balancer.run.arrivals import RunStart
from counterpoise.loader.step.errors import LoaderError
from counterpoise.loader.step.waiting import WaitLog
from counterpoise.workers.codec.frames import payload_of
from counterpoise.workers.daemon.results import Decoded
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.sources.failures import kind_of, reason_of
from counterpoise.workers.sources.interface import SampleError, Source
from tests.simulation.balancer import NoMemory

logger = logging.getLogger(__name__)
_WORKER, _RANK = b"worker", b"rank"


class InProcessConnection:
    """A stand-in for Connection without sockets and processes."""

    def __init__(self, job: JobSpec, source: Source, ranks: tuple[int, ...]) -> None:
        self._job = job
        self._ranks = ranks
        self._handler = SourceHandler(
            source, job.resources, job.plan.seed, local=True, shift_labels=job.shift_labels
        )
        # Whether an exception has left coordinator or sessions in the middle of something.
        self._is_torn = False
        self._is_first = True  # nothing of the run has been handed out yet
        self._connect()

    def _connect(self) -> None:
        self.session = RankSession(self._ranks, to_json(self._job), prefetch=1)
        # The data set is the trainer's own object, and may say something else in each epoch.
        self._coordinator = Coordinator(self._job)
        self._coordinator.costs = NoMemory()
        self._worker = WorkerSession()
        self._queue: deque[Send] = deque()
        self._send(_WORKER, WorkerHello("in process", 0, "here", 0))
        self._send(_RANK, self.session.hello)
        self._deliver_all()

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""
        return self.session.left_out

    def wait_ready(self, timeout_s: float | None = None) -> Ready:  # noqa: ARG002
        """Return the number of samples and the fingerprint."""
        if self.session.ready is None:
            raise LoaderError(self.session.failure or "the job did not start")
        return self.session.ready

    def begin(self, start: RunStart) -> None:
        """Start the next run."""
        if self._is_torn:
            self._connect()
        self._is_torn = self._is_first = True
        begun = self.session.begin(*start)
        for message in (*begun, *self.session.new_requests()):
            self._send(_RANK, message)
        self._is_torn = False

    go_on = begin

    def recover(self, start: RunStart) -> None:
        """Start again at a position if an exception has left something half done.

        What was measured and decoded ahead of the position is lost; this is rare.
        """
        if self._is_torn:
            self.begin(start)

    def next(self, timeout_s: float | None = None) -> Arrival | None:  # noqa: ARG002
        """Work until the next microbatch is there; return it, or None at the end of the run."""
        self._is_torn = True
        arrival = self._work()
        self._is_torn = False
        return arrival

    def release(self, arrival: Arrival) -> None:
        """Acknowledge a microbatch and ask for those after it; does nothing the second time."""
        if self._is_torn:
            return
        self._is_torn = True
        self._is_first = False
        for message in self.session.release(arrival):
            self._send(_RANK, message)
        self._is_torn = False

    def add_up_labels(
        self, _step: int, tokens: Mapping[int, int], _timeout_s: float | None = None, /
    ) -> int:
        """Return the label tokens of a step: all ranks are played here, so nobody is waited for."""
        return sum(tokens.values())

    def _work(self) -> Arrival | None:
        log, since = WaitLog(self._is_first), time.monotonic()
        while True:
            self._deliver_all()
            if self.session.failure:
                raise LoaderError(self.session.failure)
            arrival = self.session.peek()
            if arrival is not None or self.session.at_end():
                return arrival
            task = self._worker.tasks.popleft() if self._worker.tasks else None
            if task is None:
                raise LoaderError(
                    "no work and no batch is left: please report this bug of counterpoise"
                )
            self._do(task)
            if log.is_due(waited := time.monotonic() - since):
                logger.warning(
                    "this process (num_workers=0) has worked %.0f s on %s; still missing: %s",
                    waited, log.what, waiting_reason(self._coordinator),
                )  # fmt: skip

    def finish(self) -> None:
        """Do nothing: a run has no processes of its own."""

    def close(self) -> None:
        """Tell the coordinator that this rank leaves."""
        if not self._is_torn:
            self._send(_RANK, RankBye())

    def _send(self, peer: bytes, message: Message, *payloads: object) -> None:
        self._queue.extend(self._coordinator.handle(peer, message, payloads))

    def _deliver_all(self) -> None:
        while self._queue:
            effect = self._queue.popleft()
            if effect.peer == _RANK:
                self.session.handle(effect.message, effect.payloads)
                for message in self.session.new_requests():
                    self._send(_RANK, message)
            elif isinstance(action := self._worker.handle(effect.message), Welcome):
                count, fingerprint = self._handler.open("")
                self._send(_WORKER, WorkerReady(count, fingerprint, action.number))

    def _do(self, task: SampleTask) -> None:
        work = self._handler.probe if task.kind == "probe" else self._handler.decode
        ordinal = task.ref.ordinal
        try:
            result = work(task.ref, task.epoch)
        except Exception as error:
            key = error.key if isinstance(error, SampleError) else self._handler.key(task.ref)
            io, file = kind_of(error) == "io", self._handler.file_of(task.ref)
            failed = SampleFailed(task.lease, ordinal, key, reason_of(error), io, file)
            self._send(_WORKER, failed)
            return
        if isinstance(result, Probed):
            self._send(_WORKER, ProbeDone(task.lease, (result,)))
        elif isinstance(result, Decoded):
            item = DecodedItem(ordinal, result.key, result.cost, result.header, 0, 0)
            self._send(_WORKER, DecodeDone(task.lease, (item,)), payload_of(result.buffers))
