"""Traces: what each party did when, for a few seconds, on one clock.

Whoever asks for a trace sends the balancer StartTrace; the balancer passes it on to each peer that
it hears from meanwhile. A peer answers at once with its clock, and when the time is over with its
spans; the balancer then sends all of them, and how far each clock is ahead of its own.
"""

from collections import deque

from .records import ArrayRecord, Integer

MICROSECONDS = 1_000_000
MAX_TRACE_MS = 60_000
# Spans of one party, the last ones, and samples that one of them names.
MAX_SPANS, MAX_ORDINALS = 20_000, 64


class Span(ArrayRecord, frozen=True):
    """What took from begin_us to end_us, on its party's wall clock.

    place: rank, step and microbatch, where it has one; ordinals: its samples.
    """

    kind: str
    begin_us: Integer
    end_us: Integer
    place: tuple[Integer, ...]
    ordinals: tuple[Integer, ...]


class StartTrace(ArrayRecord, frozen=True):
    """Record spans for so long; sent_us: the sender's wall clock."""

    milliseconds: Integer
    sent_us: Integer


class TraceSpans(ArrayRecord, frozen=True):
    """A peer's clock, when a StartTrace came (got_us); done: with its spans, the time is over."""

    asked_us: Integer
    got_us: Integer
    sent_us: Integer
    done: bool = False
    spans: tuple[Span, ...] = ()


class PartySpans(ArrayRecord, frozen=True):
    """The spans of one party. ahead_us: its clock less the balancer's, within error_us."""

    name: str
    ahead_us: Integer
    error_us: Integer
    spans: tuple[Span, ...]


class TraceReport(ArrayRecord, frozen=True):
    """The answer to a StartTrace when its time is over."""

    begin_us: Integer
    parties: tuple[PartySpans, ...]


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
