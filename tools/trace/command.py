"""The command `counterpoise trace`: writes what a job's parties did when, for Perfetto."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import click

from ...balancer.protocol.trace_messages import (
    MAX_TRACE_MS,
    PartySpans,
    Span,
    StartTrace,
    TraceReport,
)
from ...balancer.server.tracing import GRACE_S
from ...balancer.transport.asking import observe
from ...balancer.transport.keys import PeerKeys
from ...workers.sources.visible_text import visible
from ..console.commands import Command
from ..doctor.asking import asking_options

ANSWER_S = 5.0


@click.command("trace", cls=Command)
@asking_options
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, MAX_TRACE_MS / 1000),
    help="Record for so long.",
)  # fmt: skip
@click.option(
    "--out", default=Path("trace.json"), show_default=True,
    type=click.Path(dir_okay=False, path_type=Path), help="The file to write.",
)  # fmt: skip
def command(address: str, keys: PeerKeys | None, seconds: float, job: str, out: Path) -> int:
    """Record how samples go from probe to trainer at the balancer at ADDRESS, all on one clock.

    Open the file at https://ui.perfetto.dev, or in chrome://tracing. Exit status: 0, or 3 where no
    balancer answers.

    \b
    Example:
      counterpoise trace tcp://10.0.0.1:5555 --keys keys/trainer --seconds 10 --out trace.json
    """  # noqa: D301
    with observe(address, keys, job) as observer:
        question = StartTrace(round(1000 * seconds))
        answer = observer.ask(question, TraceReport, seconds + GRACE_S + ANSWER_S)
    if isinstance(answer, str):
        click.echo(f"counterpoise: {address}: {answer}", err=True)
        return 3
    out.write_text(json.dumps(trace_events(answer)) + "\n", "utf-8")
    spans = sum(len(party.spans) for party in answer.parties)
    click.echo(f"wrote {out}: {spans} spans of {len(answer.parties)} parties")
    return 0


# In Chrome's trace-event JSON, which Perfetto opens, a sample's way is an arrow: where it begins,
# and where it ends.
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
