"""Takes a trace: records what the server sees, and asks the peers that it hears from for theirs."""

import time
from collections import Counter

from msgspec import structs

from ..job.effects import Send
from ..parties.messages import WantBatches
from ..pool.messages import COSTS, DoPart, PartBroken, PartMade, PartMeasured
from ..protocol.messages import Message, PeerRejected
from ..protocol.trace_messages import MICROSECONDS, PartySpans, StartTrace, TraceReport, TraceSpans
from ..run.tasks import TASK_HEAD
from ..transport.naming import read_job
from .spans import SpanRecorder

# Peers have so long to send their spans: a trainer looks at its messages between batches.
GRACE_S = 3.0
# A turn of the loop that takes less is not recorded.
TURN_S = 1e-3
MAX_NAME = 80
# Parts under way that are remembered: more is no trace's.
MAX_OPEN = 100_000
# How often a peer is asked for its clock. What it tells is on its way for a while, which makes its
# clock seem to be behind: the largest difference is the best.
MOST_QUESTIONS = 8


class Tracer:
    """The trace that is being taken, of one job or ("" of its peer's name) of all, if any is.

    Samples are named by where they are in the source.
    """

    def __init__(self) -> None:
        # When the trace is over, None while none is taken.
        self.until: float | None = None
        self._job = ""
        self._begin_us = 0
        self._recorder = SpanRecorder()
        self._asked_by: set[bytes] = set()
        self._parties: dict[bytes, PartySpans] = {}
        self._questions, self._clocks = Counter[bytes](), dict[bytes, int]()
        self._missing: set[bytes] = set()
        self._parts: dict[tuple[bytes, int], tuple[float, DoPart]] = {}

    def take(self, peer: bytes, message: StartTrace | TraceSpans, now: float) -> list[Send]:
        """Handle a message of a trace; return what to send."""
        if isinstance(message, TraceSpans):
            self._take_spans(peer, message)
            return []
        if self.until is None:
            self._job, self._begin_us = read_job(peer), _wall_us()
            self._recorder.start(message, now, self._begin_us)
            self.until = self._recorder.until
        elif self._job != read_job(peer):
            return [Send(peer, PeerRejected("a trace of another job is taken: ask again later"))]
        self._asked_by.add(peer)
        return []

    def received(self, peer: bytes, message: Message, now: float) -> list[Send]:
        """Record a message that has come; ask its peer for its spans."""
        if self.until is None or self._job not in ("", read_job(peer)):
            return []
        if isinstance(message, PartMade | PartMeasured | PartBroken):
            since, part = self._parts.pop((peer, message.number), (now, None))
            if part is not None:
                kind = "part to measure" if part.form == COSTS else "part to load"
                self._recorder.add(kind, since, now, (), part.task[TASK_HEAD:])
        elif not isinstance(message, WantBatches):
            return []
        if self._questions[peer] == MOST_QUESTIONS:
            return []
        self._questions[peer] += 1
        if peer not in self._parties:
            name = peer.decode("ascii", "replace").rpartition("|")[2].rpartition(".")[0]
            self._parties[peer] = PartySpans(name[:MAX_NAME], read_job(peer), 0, ())
            self._missing.add(peer)
        return [Send(peer, StartTrace(max(0, round(1000 * (self.until - now)))))]

    def turned(self, began: float, now: float) -> None:
        """Record what the jobs have done from `began` to now, where it took long: they plan."""
        if self.until is not None and now - began >= TURN_S:
            self._recorder.add("plan", began, now)

    def sent(self, peer: bytes, message: Message, now: float) -> None:
        """Record a message that is sent."""
        is_traced = self._job in ("", read_job(peer)) and len(self._parts) < MAX_OPEN
        if isinstance(message, DoPart) and is_traced:
            self._parts.setdefault((peer, message.number), (now, message))

    def end_if_due(self, now: float) -> list[Send]:
        """Return the report for those who asked, once all peers have answered or are late."""
        if self.until is None or now < self.until + GRACE_S * bool(self._missing):
            return []
        recorded = self._recorder.take(now)
        mine = PartySpans("balancer", "", 0, () if recorded is None else recorded.spans)
        parties = (
            structs.replace(party, ahead_us=self._clocks.get(peer, 0))
            for peer, party in self._parties.items()
        )
        report = TraceReport(self._begin_us, (mine, *parties))
        sent = [Send(peer, report) for peer in self._asked_by]
        self.__init__()  # type: ignore[misc]
        return sent

    def _take_spans(self, peer: bytes, message: TraceSpans) -> None:
        if peer not in self._parties:
            return
        if message.done:
            self._parties[peer] = structs.replace(self._parties[peer], spans=message.spans)
            self._missing.discard(peer)
        else:
            ahead_us = message.sent_us - _wall_us()
            self._clocks[peer] = max(ahead_us, self._clocks.get(peer, ahead_us))


def _wall_us() -> int:
    return round(MICROSECONDS * time.time())
