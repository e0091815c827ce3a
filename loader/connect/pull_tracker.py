"""A rank's pulls from workers: payloads that are asked for, here, or cannot be had; no socket.

Theory of operation. A microbatch that has arrived names its payloads by their serials, and the
workers that have them. All that one worker has of it are asked for at once, in one request, long
before the microbatch is used. What comes is kept until the microbatch is released. A payload that
the worker does not have any more is *gone*, and so are all that were asked for when a connection
ends or the worker does not answer in time: then the microbatch is of no use, and is asked for again
from the balancer, which has it decoded again.

A worker that cannot be connected to, or that connects and answers nothing several times in a row,
is *out of reach*: nothing more is asked of it, and the balancer is told, so that what the worker
decodes goes through the balancer. Every wait has an end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...balancer.protocol.parts import PayloadServer
from ...balancer.protocol.payload_messages import Batch, PulledPayloads, PullFailed, PullPayloads

# Returns why a payload is not what its header says, "" if it is: workers/codec/fields.py.
LayoutCheck = Callable[[bytes, object], str]
Key = tuple[int, int]

# A worker that cannot be connected to within this time is out of reach.
CONNECT_S = 5.0
# An answer comes within this time, and the time that its bytes take at this rate.
ANSWER_S, SLOW_BYTES_PER_S = 10.0, 4e6
# A worker that has answered nothing so many times, one after the other, is out of reach.
MOST_SILENCES = 3
# A connection over which nothing was asked for so long is closed: each costs descriptors here, at
# the worker, and a look at every turn.
UNUSED_S = 60.0


@dataclass(frozen=True, slots=True)
class Pull:
    """A request that is not answered: header and size of each payload, by serial."""

    message: PullPayloads
    expected: dict[int, tuple[bytes, int]]
    asked_at: float

    @property
    def nbytes(self) -> int:
        """The size of the answer."""
        return sum(nbytes for _, nbytes in self.expected.values())


@dataclass(slots=True)
class _Worker:
    """A worker that is pulled from; heard_at: when it last answered."""

    server: PayloadServer
    began_at: float
    is_connected: bool = False
    heard_at: float = 0.0
    silences: int = 0
    pulls: dict[int, Pull] = field(default_factory=dict)


class PullTracker:
    """The pulls of one rank process. Times are in seconds, on any one clock.

    ended: tokens of the workers whose connections are of no use any more; the caller closes them,
    and takes them out. reports: what the balancer is to be told; the caller sends them.
    """

    def __init__(
        self,
        check_layout: LayoutCheck,
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`connect_s` and `answer_s` are how long is waited for a connection and for an answer."""
        self._connect_s, self._answer_s = connect_s, answer_s
        self.ended: list[int] = []
        self.reports: list[PullFailed] = []
        self._check_layout = check_layout
        self._workers: dict[int, _Worker] = {}
        self._here: dict[Key, object] = {}
        self._asked: dict[Key, None] = {}
        self._gone: dict[Key, None] = {}
        # Why workers are out of reach.
        self._unreachable: dict[int, str] = {}
        self._last = 0

    @property
    def waiting(self) -> int:
        """The number of requests that are not answered."""
        return sum(len(worker.pulls) for worker in self._workers.values())

    @property
    def is_empty(self) -> bool:
        """True if nothing is asked for, kept, or to be told."""
        return not (self._workers or self._here or self._gone or self.ended or self.reports)

    # --- what is wanted

    def want(
        self, arrived: Sequence[Batch], now: float
    ) -> list[tuple[PayloadServer, PullPayloads]]:
        """Return what to ask of which worker for microbatches that have arrived; all else is kept.

        What belongs to none of these is forgotten.
        """
        self._forget_all_but(arrived)
        asked = []
        for batch in arrived:
            for server in batch.servers:
                message = self._ask(batch, server, now)
                if message is not None:
                    asked.append((server, message))
        return asked

    def _ask(self, batch: Batch, server: PayloadServer, now: float) -> PullPayloads | None:
        """Return a request for what a worker has of a microbatch and was not asked for yet."""
        wanted = {
            item.serial: (item.header, item.nbytes)
            for item in batch.items
            if item.token == server.token and self._is_new((item.token, item.serial))
        }
        if not wanted:
            return None
        keys = dict.fromkeys((server.token, serial) for serial in wanted)
        if server.token in self._unreachable:
            self._gone |= keys
            # Again: the balancer may not have heard it.
            self._report(server.token, self._unreachable[server.token])
            return None
        self._last += 1
        message = PullPayloads(self._last, server.token, tuple(wanted))
        worker = self._workers.setdefault(server.token, _Worker(server, now))
        worker.pulls[self._last] = Pull(message, wanted, now)
        self._asked |= keys
        return message

    def _is_new(self, key: Key) -> bool:
        return not (key in self._asked or key in self._here or key in self._gone)

    def _forget_all_but(self, arrived: Iterable[Batch]) -> None:
        wanted = {key for batch in arrived for key in _keys(batch)}
        for kept in (self._here, self._gone):
            for key in [key for key in kept if key not in wanted]:
                del kept[key]

    # --- what has become of it

    def is_settled(self, batch: Batch) -> bool:
        """Return whether nothing of a microbatch is waited for: it is here, or of no use."""
        if not batch.servers:  # as a rule
            return True
        keys = _keys(batch)
        return any(key in self._gone for key in keys) or all(key in self._here for key in keys)

    def payloads(self, batch: Batch, frames: Iterable[object]) -> tuple[object, ...] | None:
        """Return the payloads of a microbatch that is settled; None if some cannot be had.

        frames: those that came with it.
        """
        inline = iter(frames)
        found = [
            self._here.get((item.token, item.serial)) if item.serial else next(inline)
            for item in batch.items
        ]
        return None if any(each is None for each in found) else tuple(found)

    def connected(self, token: int) -> None:
        """Record that a connection to a worker is made."""
        if (worker := self._workers.get(token)) is not None:
            worker.is_connected = True

    def disconnected(self, token: int, reason: str) -> None:
        """Record that a connection has ended, or could not be made, and why.

        A connection that was there may come again: what was asked for over it is gone.
        """
        worker = self._workers.get(token)
        if worker is None:
            return
        if worker.is_connected:
            self._lose(worker)
        else:
            self._give_up(worker, reason)

    def received(
        self, token: int, answer: PulledPayloads, payloads: Sequence[object], now: float
    ) -> None:
        """Keep what a worker has sent; what it has not is gone, and so is what is rubbish."""
        worker = self._workers.get(token)
        pull = worker.pulls.pop(answer.number, None) if worker is not None else None
        if worker is None or pull is None:
            return  # it came too late
        worker.is_connected, worker.heard_at, worker.silences = True, now, 0
        sent = dict(zip(answer.serials, payloads, strict=True))
        for serial, (header, nbytes) in pull.expected.items():
            key = (token, serial)
            self._asked.pop(key, None)
            if serial not in sent:
                self._gone[key] = None
            elif reason := self._why_rubbish(header, nbytes, sent[serial]):
                self._gone[key] = None
                self._report(token, reason, is_rubbish=True)
            else:
                self._here[key] = sent[serial]

    def _why_rubbish(self, header: bytes, nbytes: int, payload: object) -> str:
        buffer: Any = getattr(payload, "buffer", payload)
        view = memoryview(buffer)
        if view.nbytes != nbytes:
            return f"a payload has {view.nbytes} bytes, {nbytes} were announced"
        return self._check_layout(header, payload)

    def expire(self, now: float) -> None:
        """Give up what has taken too long, and connections that nothing is asked for over."""
        for worker in list(self._workers.values()):
            # Answers come in order: only the oldest is waited for now.
            pull = next(iter(worker.pulls.values()), None)
            if pull is None:
                if worker.is_connected and now > worker.heard_at + UNUSED_S:
                    self._lose(worker)
            elif not worker.is_connected:
                if now > max(worker.began_at, pull.asked_at) + self._connect_s:
                    self._give_up(worker, f"no connection within {self._connect_s:.0f} s")
            elif now > max(pull.asked_at, worker.heard_at) + self._allowed_s(pull):
                silences = worker.silences + 1
                if silences < MOST_SILENCES:
                    self._lose(worker, silences)
                else:
                    self._give_up(worker, f"connected, and no answer {silences} times in a row")

    def _allowed_s(self, pull: Pull) -> float:
        return self._answer_s + pull.nbytes / SLOW_BYTES_PER_S

    def forget_connections(self) -> None:
        """Forget what was asked for: all connections were closed, and all is asked for again."""
        self._workers.clear()
        self._asked.clear()
        self.ended.clear()

    def _lose(self, worker: _Worker, silences: int = 0) -> None:
        """Count as gone what was asked of a worker; it is connected to again when it is needed."""
        token = worker.server.token
        for pull in worker.pulls.values():
            for serial in pull.expected:
                self._asked.pop((token, serial), None)
                self._gone[token, serial] = None
        self.ended.append(token)
        if silences:
            worker.pulls.clear()
            worker.silences, worker.is_connected = silences, False
        else:
            del self._workers[token]

    def _give_up(self, worker: _Worker, reason: str) -> None:
        token = worker.server.token
        self._lose(worker)
        shown = f"{worker.server.address}: {reason}"
        self._unreachable[token] = shown
        self._report(token, shown)

    def _report(self, token: int, reason: str, is_rubbish: bool = False) -> None:
        self.reports.append(PullFailed(token, reason, is_rubbish))


def _keys(batch: Batch) -> list[Key]:
    """Return the payloads of a microbatch that are pulled."""
    return [(item.token, item.serial) for item in batch.items if item.serial]
