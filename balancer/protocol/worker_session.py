"""A worker's side of the protocol: which source to open and which sample to work on next.

Sans-IO: messages in, effects out. The shell that drives it is workers/daemon/loop.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from .messages import (
    Bye,
    Lease,
    Message,
    PayloadsFreed,
    PeerRejected,
    Revoke,
    SampleRef,
    ServePayloads,
    StopServing,
    UnknownPeer,
    Welcome,
)
from .transitions import WORKER, Outcome, WorkerAction

# Seconds between a worker's heartbeats.
HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenSource:
    """Open the source that the job describes (empty: the one that the worker was started with).

    Then send WorkerReady with this `number`.
    """

    job: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class RepeatReady:
    """Send WorkerReady again, if the source is open."""


@dataclass(frozen=True, slots=True)
class SayHello:
    """Send WorkerHello again."""


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End the worker process; the reason is empty if nothing went wrong."""

    reason: str


@dataclass(frozen=True, slots=True)
class FreePayloads:
    """Free payloads that this process keeps."""

    serials: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CarryPayloads:
    """Keep payloads for ranks to pull, or send them inline, as the message says."""

    way: ServePayloads | StopServing


Effect = OpenSource | RepeatReady | SayHello | FreePayloads | CarryPayloads | EndWorker


class SampleTask(msgspec.Struct, frozen=True, gc=False):
    """One sample to probe or to decode under a lease; `alone` as in Lease."""

    lease: int
    kind: str
    epoch: int
    ref: SampleRef
    alone: bool = False


class WorkerSession:
    """The state machine of a worker; `handle` follows the table, `next_task` returns the work.

    tasks: the samples to work on, in this order unless a message changes it.
    """

    def __init__(self) -> None:
        self.state = "joining"
        self.dropped = 0
        self.tasks: deque[SampleTask] = deque()
        self._welcome: Welcome | None = None
        self.handlers: dict[WorkerAction, Callable[[Any], Effect | None]] = {
            WorkerAction.OPEN_SOURCE: self._open_source,
            WorkerAction.QUEUE_LEASE: self._queue_lease,
            WorkerAction.DROP_LEASE: self._drop_lease,
            WorkerAction.FREE_PAYLOADS: self._free_payloads,
            WorkerAction.CHANGE_CARRIAGE: CarryPayloads,
            WorkerAction.SAY_HELLO: self._say_hello,
            WorkerAction.END: self._end,
        }

    def handle(self, message: Message) -> Effect | None:
        """Apply one message; return what the shell must do, if anything."""
        row = WORKER.get((self.state, type(message).__name__))
        if row is None:
            self.dropped += 1
            return None
        self.state = row.after[Outcome.DONE]
        return self.handlers[row.action](message)

    def next_task(self) -> SampleTask | None:
        """Return the next sample to work on, oldest lease first."""
        return self.tasks.popleft() if self.tasks else None

    def next_lease(self) -> list[SampleTask]:
        """Return all that is left of the oldest lease, to be worked on at once."""
        taken: list[SampleTask] = []
        while self.tasks and (not taken or self.tasks[0].lease == taken[0].lease):
            taken.append(self.tasks.popleft())
        return taken

    def _open_source(self, message: Welcome) -> OpenSource | RepeatReady:
        if message == self._welcome:
            return RepeatReady()
        self.tasks.clear()
        self._welcome = message
        return OpenSource(message.job, message.number)

    def _queue_lease(self, message: Lease) -> FreePayloads | None:
        lease, kind, epoch, alone = message.lease, message.kind, message.epoch, message.alone
        self.tasks.extend([SampleTask(lease, kind, epoch, ref, alone) for ref in message.refs])
        return FreePayloads(message.freed) if message.freed else None

    def _free_payloads(self, message: PayloadsFreed) -> FreePayloads:
        return FreePayloads(message.serials)

    def _drop_lease(self, message: Revoke) -> None:
        self.tasks = deque(task for task in self.tasks if task.lease != message.lease)

    def _say_hello(self, _: UnknownPeer) -> SayHello:
        return SayHello()

    def _end(self, message: PeerRejected | Bye) -> EndWorker:
        self.tasks.clear()
        return EndWorker(message.reason if isinstance(message, PeerRejected) else "")
