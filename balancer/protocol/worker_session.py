"""A worker's side of the protocol: what to say, and which sample to work on next.

Messages in, actions out; no socket, no clock. The shell that drives it is workers/daemon/loop.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .messages import Bye, Lease, Message, PeerRejected, Revoke, SampleRef, UnknownPeer, Welcome
from .transitions import WORKER, Outcome, WorkerAction

# Seconds between a worker's heartbeats.
HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenSource:
    """An action: open the source that the job describes (empty: the one the worker has).

    Then say that it is ready, with this `number`.
    """

    job: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class RepeatReady:
    """An action: say again that the source is open, if it is."""


@dataclass(frozen=True, slots=True)
class SayHello:
    """An action: say hello again."""


@dataclass(frozen=True, slots=True)
class EndWorker:
    """An action: end; the reason is empty where nothing went wrong."""

    reason: str


Effect = OpenSource | RepeatReady | SayHello | EndWorker


@dataclass(frozen=True, slots=True)
class SampleTask:
    """One sample to probe or to decode under a lease."""

    lease: int
    kind: str
    epoch: int
    ref: SampleRef


class WorkerSession:
    """The state machine of a worker; `handle` walks the table, `next_task` gives the work."""

    def __init__(self) -> None:
        self.state = "joining"
        self.dropped = 0
        self._tasks: deque[SampleTask] = deque()
        self._welcome: Welcome | None = None
        self.handlers: dict[WorkerAction, Callable[[Any], Effect | None]] = {
            WorkerAction.OPEN_SOURCE: self._open_source,
            WorkerAction.QUEUE_LEASE: self._queue_lease,
            WorkerAction.DROP_LEASE: self._drop_lease,
            WorkerAction.SAY_HELLO: self._say_hello,
            WorkerAction.END: self._end,
        }

    def handle(self, message: Message) -> Effect | None:
        """Take in one message; return what the shell must do, if anything."""
        row = WORKER.get((self.state, type(message).__name__))
        if row is None:
            self.dropped += 1
            return None
        self.state = row.after[Outcome.DONE]
        return self.handlers[row.action](message)

    def next_task(self) -> SampleTask | None:
        """Return the next sample to work on, oldest lease first."""
        return self._tasks.popleft() if self._tasks else None

    def _open_source(self, message: Welcome) -> OpenSource | RepeatReady:
        if message == self._welcome:
            return RepeatReady()
        self._tasks.clear()
        self._welcome = message
        return OpenSource(message.job, message.number)

    def _queue_lease(self, message: Lease) -> None:
        self._tasks.extend(
            SampleTask(message.lease, message.kind, message.epoch, ref) for ref in message.refs
        )

    def _drop_lease(self, message: Revoke) -> None:
        self._tasks = deque(task for task in self._tasks if task.lease != message.lease)

    def _say_hello(self, _: UnknownPeer) -> SayHello:
        return SayHello()

    def _end(self, message: PeerRejected | Bye) -> EndWorker:
        self._tasks.clear()
        return EndWorker(message.reason if isinstance(message, PeerRejected) else "")
