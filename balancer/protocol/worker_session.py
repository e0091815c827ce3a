"""A worker's side of the protocol: which source to open and which sample to work on next.

Sans-IO: messages in, and those that the shell must act on out. The shell that drives it is
workers/daemon/loop.py.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from .messages import Bye, Message, PeerRejected, Welcome
from .parts import SampleRef
from .payload_messages import Lease, PayloadsFreed, Revoke
from .transitions import WORKER, Outcome, handlers_of

# Seconds between a worker's heartbeats.
HEARTBEAT_S = 1.0


class RepeatReady(msgspec.Struct, frozen=True):
    """Send WorkerReady again, if the source is open."""


class SampleTask(msgspec.Struct, frozen=True, gc=False):
    """One sample to probe or to decode under a lease; `alone` as in Lease."""

    lease: int
    kind: str
    epoch: int
    ref: SampleRef
    alone: bool = False


class WorkerSession:
    """The state machine of a worker; `handle` follows the table, `next_lease` returns the work.

    tasks: the samples to work on, in this order unless a message changes it.
    """

    def __init__(self) -> None:
        self.state = "joining"
        self.dropped = 0
        self.tasks: deque[SampleTask] = deque()
        self._welcome: Welcome | None = None
        self.handlers: dict[str, Callable[[Any], Message | RepeatReady | None]]
        self.handlers = handlers_of(self, WORKER)

    def handle(self, message: Message) -> Message | RepeatReady | None:
        """Apply one message; return it, or what is left of it, if the shell must act on it.

        Welcome: open the source that the job describes (empty: the one that the worker was started
        with), and send WorkerReady with its number. PayloadsFreed: free them. ServePayloads,
        StopServing: carry payloads so. UnknownPeer: send WorkerHello again. PeerRejected, Bye: end.
        """
        row = WORKER.get((self.state, type(message).__name__))
        if row is None:
            self.dropped += 1
            return None
        self.state = row.after[Outcome.DONE]
        return self.handlers[row.action](message)

    def next_lease(self) -> list[SampleTask]:
        """Return all that is left of the oldest lease, to be worked on at once."""
        taken: list[SampleTask] = []
        while self.tasks and (not taken or self.tasks[0].lease == taken[0].lease):
            taken.append(self.tasks.popleft())
        return taken

    def _open_source(self, message: Welcome) -> Welcome | RepeatReady:
        if message == self._welcome:
            return RepeatReady()
        self.tasks.clear()
        self._welcome = message
        return message

    def _queue_lease(self, message: Lease) -> PayloadsFreed | None:
        lease, kind, epoch, alone = message.lease, message.kind, message.epoch, message.alone
        self.tasks.extend([SampleTask(lease, kind, epoch, ref, alone) for ref in message.refs])
        return PayloadsFreed(message.freed) if message.freed else None

    def _drop_lease(self, message: Revoke) -> None:
        self.tasks = deque(task for task in self.tasks if task.lease != message.lease)

    def _pass_on(self, message: Message) -> Message:
        return message

    _free_payloads = _change_carriage = _say_hello = _pass_on

    def _end(self, message: PeerRejected | Bye) -> Message:
        self.tasks.clear()
        return message
