"""Records the spans of one party of a trace, and compares clocks: pure."""

from collections import deque

from ..protocol.status_messages import MICROSECONDS
from ..protocol.trace_messages import MAX_TRACE_MS, Span, StartTrace, TraceSpans

# Spans of one party, the last ones, and samples that one of them names.
MAX_SPANS, MAX_ORDINALS = 20_000, 64


class SpanRecorder:
    """The spans of one party while a trace is taken; None for `until` while none is.

    Times are seconds of one monotonic clock; wall_us says what the wall clock is at one of them.

    >>> recorder = SpanRecorder()
    >>> recorder.start(StartTrace(1000, 5), now=7.0, wall_us=90)
    TraceSpans(asked_us=5, got_us=90, sent_us=90, done=False, spans=())
    >>> recorder.add("decode", 7.5, 7.75, ordinals=[3])
    >>> recorder.take(now=7.9), recorder.take(now=8.1).spans[0].begin_us, recorder.until
    (None, 500090, None)
    """

    def __init__(self) -> None:
        self.until: float | None = None
        self._asked = StartTrace(0, 0)
        self._wall_us = 0.0
        self._spans: deque[Span] = deque(maxlen=MAX_SPANS)

    def start(self, asked: StartTrace, now: float, wall_us: int) -> TraceSpans:
        """Begin to record, unless that has begun; return the answer with this party's clock."""
        if self.until is None:
            self._asked, self._wall_us = asked, wall_us - MICROSECONDS * now
            self.until = now + max(0, min(asked.milliseconds, MAX_TRACE_MS)) / 1000
        return TraceSpans(asked.sent_us, wall_us, wall_us)

    def add(
        self,
        kind: str,
        begin: float,
        end: float,
        place: tuple[int, ...] = (),
        ordinals: "list[int] | tuple[int, ...]" = (),
    ) -> None:
        """Record a span."""
        self._spans.append(
            Span(kind, self._us(begin), self._us(end), place, tuple(ordinals[:MAX_ORDINALS]))
        )

    def take(self, now: float) -> TraceSpans | None:
        """Return all spans once the time is over, None before."""
        if self.until is None or now < self.until:
            return None
        self.until, spans = None, tuple(self._spans)
        self._spans.clear()
        return TraceSpans(self._asked.sent_us, self._us(now), self._us(now), True, spans)

    def _us(self, moment: float) -> int:
        return round(MICROSECONDS * moment + self._wall_us)


def clock_ahead(sent_us: int, got_us: int, answered_us: int, back_us: int) -> tuple[int, int]:
    """Return how far a peer's clock is ahead, by a round trip as NTP does, and the error.

    A peer that is busy looks at the question late, and its answer travels quickly all the same: so
    where the way there took long the way back alone says it.

    >>> clock_ahead(0, 110, 112, 20), clock_ahead(0, 900_000, 900_000, 900_050)
    ((101, 9), (-50, 450025))
    """
    there, back = got_us - sent_us, answered_us - back_us
    error = (there - back) // 2
    return (back if error > LATE_US else (there + back) // 2), error


# A round trip that took longer than twice this was not the network's.
LATE_US = 20_000
