"""Records the spans of one party of a trace: pure."""

from collections import deque

from ..protocol.trace_messages import MAX_TRACE_MS, MICROSECONDS, Span, StartTrace, TraceSpans

# Spans of one party, the last ones, and samples that one of them names.
MAX_SPANS, MAX_ORDINALS = 20_000, 64


class SpanRecorder:
    """The spans of one party while a trace is taken; None for `until` while none is.

    Times are seconds of one monotonic clock; wall_us says what the wall clock is at one of them.

    >>> recorder = SpanRecorder()
    >>> recorder.start(StartTrace(1000), now=7.0, wall_us=90)
    TraceSpans(sent_us=90, done=False, spans=())
    >>> recorder.add("decode", 7.5, 7.75, ordinals=[3])
    >>> recorder.take(now=7.9), recorder.take(now=8.1).spans[0].begin_us, recorder.until
    (None, 500090, None)
    """

    def __init__(self) -> None:
        self.until: float | None = None
        self._wall_us = 0.0
        self._spans: deque[Span] = deque(maxlen=MAX_SPANS)

    def start(self, asked: StartTrace, now: float, wall_us: int) -> TraceSpans:
        """Begin to record, unless that has begun; return the answer with this party's clock."""
        if self.until is None:
            self._wall_us = wall_us - MICROSECONDS * now
            self.until = now + max(0, min(asked.milliseconds, MAX_TRACE_MS)) / 1000
        return TraceSpans(wall_us)

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
        return TraceSpans(self._us(now), True, spans)

    def _us(self, moment: float) -> int:
        return round(MICROSECONDS * moment + self._wall_us)
