"""Traces: what each party did when, for a few seconds, on one clock.

A command that asks for a trace sends the balancer StartTrace; the balancer passes it on to each
peer that it hears from meanwhile. A peer answers at once with its clock, and when the time is over
with its spans; the balancer then sends all of them, and how far each clock is ahead of its own.
"""

from .parts import Count
from .records import ArrayRecord, Integer

MAX_TRACE_MS = 60_000
MICROSECONDS = 1_000_000


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
    """Record spans for so long."""

    milliseconds: Integer


class TraceSpans(ArrayRecord, frozen=True):
    """A peer's clock when it sends this; done: with its spans, the time is over."""

    sent_us: Count
    done: bool = False
    spans: tuple[Span, ...] = ()


class PartySpans(ArrayRecord, frozen=True):
    """The spans of a party of a job ("": of all). ahead_us: its clock less ours, about."""

    name: str
    job: str
    ahead_us: Integer
    spans: tuple[Span, ...]


class TraceReport(ArrayRecord, frozen=True):
    """The answer to a StartTrace when its time is over."""

    begin_us: Integer
    parties: tuple[PartySpans, ...]
