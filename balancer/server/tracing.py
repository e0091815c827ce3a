"""Takes a trace: records what the server sees, and asks the peers that it hears from for theirs."""

import time
from collections import Counter

from msgspec import structs

from ..job.effects import Send
from ..job.traced import ANSWERS, TracedMessages
from ..protocol.messages import Message, PeerRejected
from ..protocol.status_messages import MICROSECONDS
from ..protocol.trace_messages import PartySpans, StartTrace, TraceReport, TraceSpans
from ..transport.naming import job_of
from .spans import SpanRecorder, clock_ahead

# Peers have so long to send their spans: a trainer looks at its messages between batches.
GRACE_S = 3.0
# A turn of the loop that takes less is not recorded.
TURN_S = 1e-3
MAX_NAME = 80
# How often a peer is asked: the quickest round trip says best how far its clock is ahead.
MOST_QUESTIONS = 8


class Tracer:
    """The trace that is being taken, of one job or ("" of its peer's name) of all, if any is."""

    def __init__(self) -> None:
        # When the trace is over, None while none is taken.
        self.until: float | None = None
        self._job = ""
        self._begin_us = 0
        self._own = SpanRecorder()
        self._asked_by: set[bytes] = set()
        self._parties: dict[bytes, PartySpans] = {}
        self._asked = Counter[bytes]()
        self._missing: set[bytes] = set()
        self._traced = TracedMessages(self._own.add)

    def take(self, peer: bytes, message: StartTrace | TraceSpans, now: float) -> list[Send]:
        """Handle a message of a trace; return what to send."""
        if isinstance(message, TraceSpans):
            self._take_spans(peer, message)
            return []
        if self.until is None:
            self._job, self._begin_us = job_of(peer), _wall_us()
            self._own.start(message, now, self._begin_us)
            self.until = self._own.until
        elif self._job != job_of(peer):
            return [Send(peer, PeerRejected("a trace of another job is taken: ask again later"))]
        self._asked_by.add(peer)
        return []

    def received(self, peer: bytes, message: Message, now: float) -> list[Send]:
        """Record a message that has come; ask its peer for its spans."""
        is_traced = self.until is not None and self._job in ("", job_of(peer))
        if not is_traced or not isinstance(message, ANSWERS):
            return []
        self._traced.received(peer, message, now)
        if self._asked[peer] == MOST_QUESTIONS:
            return []
        self._asked[peer] += 1
        if peer not in self._parties:
            name = peer.decode("ascii", "replace").rpartition("|")[2].rpartition(".")[0]
            self._parties[peer] = PartySpans(name[:MAX_NAME], job_of(peer), 0, -1, ())
            self._missing.add(peer)
        assert self.until is not None
        return [Send(peer, StartTrace(max(0, round(1000 * (self.until - now))), _wall_us()))]

    def turned(self, began: float, now: float) -> None:
        """Record what the jobs have done from `began` to now, where it took long: they plan."""
        if self.until is not None and now - began >= TURN_S:
            self._own.add("plan", began, now)

    def sent(self, peer: bytes, message: Message, now: float) -> None:
        """Record a message that is sent."""
        if self._job not in ("", job_of(peer)):
            return
        self._traced.sent(peer, message, now)

    def end_if_due(self, now: float) -> list[Send]:
        """Return the report for those who asked, once all peers have answered or are late."""
        if self.until is None or now < self.until + GRACE_S * bool(self._missing):
            return []
        own = self._own.take(now)
        mine = PartySpans("balancer", "", 0, 0, () if own is None else own.spans)
        report = TraceReport(self._begin_us, (mine, *self._parties.values()))
        sent = [Send(peer, report) for peer in self._asked_by]
        self.__init__()  # type: ignore[misc]
        return sent

    def _take_spans(self, peer: bytes, message: TraceSpans) -> None:
        known = self._parties.get(peer)
        if known is None:
            return
        if message.done:
            self._parties[peer] = structs.replace(known, spans=message.spans)
            self._missing.discard(peer)
            return
        found = clock_ahead(message.asked_us, message.got_us, message.sent_us, _wall_us())
        if known.error_us < 0 or found[1] < known.error_us:  # the quickest of some round trips
            self._parties[peer] = structs.replace(known, ahead_us=found[0], error_us=found[1])


def _wall_us() -> int:
    return round(MICROSECONDS * time.time())
