"""Makes Chrome's trace-event JSON, which Perfetto opens, of what a balancer reports: pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from ...balancer.protocol.trace_messages import PartySpans, Span, TraceReport
from ...workers.sources.visible_text import visible

# A sample's way: where an arrow begins, and where it ends.
FROM, TO = ("probe", "decode", "measure", "load"), "carry, until asked for"
Json = dict[str, Any]


def trace_events(report: TraceReport) -> Json:
    """Return the trace: a process for each party, a row for each kind of span, arrows of samples.

    All times are the balancer's, in microseconds since the trace, or a span of it, began: Perfetto
    leaves out what is before 0.
    """
    begins = [span.begin_us - party.ahead_us for party in report.parties for span in party.spans]
    begin_us, jobs = min([report.begin_us, *begins]), [party.job for party in report.parties]
    events = [
        event
        for number, party in enumerate(report.parties)
        for event in _party_events(number, party, begin_us)
    ]
    spans = [(jobs[event["pid"]], event) for event in events if event["ph"] == "X"]
    return {"traceEvents": [*events, *_arrows(spans)], "displayTimeUnit": "ms"}


def _party_events(number: int, party: PartySpans, begin_us: int) -> Iterator[Json]:
    job = f", job {party.job}" if party.job else ""
    clock = f" (clock {party.ahead_us / 1000:+.2f} ms)" if number else ""
    name = visible(party.name + job) + clock
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    rows: dict[tuple[str, int], int] = {}
    for span, row in _in_rows(party.spans):
        if (span.kind, row) not in rows:
            rows[span.kind, row] = len(rows)
            named = {"name": visible(span.kind)}
            yield {
                "ph": "M", "name": "thread_name", "pid": number, "tid": rows[span.kind, row],
                "args": named,
            }  # fmt: skip
        args: Json = {"samples": list(span.ordinals)}
        if len(span.place) == 3:
            args |= dict(zip(("rank", "step", "microbatch"), span.place, strict=True))
        yield {
            "ph": "X", "name": visible(span.kind), "cat": "counterpoise", "pid": number,
            "tid": rows[span.kind, row], "ts": span.begin_us - party.ahead_us - begin_us,
            "dur": max(0, span.end_us - span.begin_us), "args": args,
        }  # fmt: skip


def _in_rows(spans: tuple[Span, ...]) -> Iterator[tuple[Span, int]]:
    """Yield spans with the first row of their kind in which they overlap no other."""
    ends: defaultdict[str, list[int]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.begin_us):
        row_ends = ends[span.kind]
        free = (row for row, end in enumerate(row_ends) if end <= span.begin_us)
        row = next(free, len(row_ends))
        row_ends[row:] = [span.end_us, *row_ends[row + 1 :]]
        yield span, row


def _arrows(spans: Iterable[tuple[str, Json]]) -> Iterator[Json]:
    """Yield an arrow for each sample that a rank got, from where it was last decoded before.

    Each span has its job: ordinals are a job's, and come again in each epoch.
    """
    decoded: dict[tuple[str, int], Json] = {}
    numbers = count()
    for job, event in sorted(spans, key=lambda job_event: _end(job_event[1])):
        samples = [(job, ordinal) for ordinal in event["args"]["samples"]]
        if event["name"] in FROM:
            decoded |= dict.fromkeys(samples, event)
        for sample in samples if event["name"] == TO else ():
            if (begin := decoded.get(sample)) is None:
                continue
            same = {"name": "sample", "cat": "sample", "id": next(numbers)}
            # Inside of both spans, by which a viewer finds them.
            left = max(begin["ts"], _end(begin) - 1)
            yield {"ph": "s", **same, "pid": begin["pid"], "tid": begin["tid"], "ts": left}
            yield {
                "ph": "f", "bp": "e", **same, "pid": event["pid"], "tid": event["tid"],
                "ts": max(left, event["ts"]),
            }  # fmt: skip


def _end(span: Json) -> int:
    end: int = span["ts"] + span["dur"]
    return end
