"""A trace as Chrome's events: on one clock, rows without overlaps, arrows from worker to rank."""

from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from counterpoise.balancer.protocol.trace_messages import PartySpans, Span, TraceReport
from counterpoise.tools.trace.command import trace_events

WORKER = PartySpans(
    "w", "", 5000,
    (
        Span("decode", 16_000, 17_000, (), (3,)), Span("decode", 17_000, 18_000, (), (4,)),
        Span("decode", 16_500, 17_500, (), (5,)),
    ),
)  # fmt: skip
RANK = PartySpans(
    "r", "", -2000, (Span("carry, until asked for", 12_000, 13_000, (0, 1, 2), (3, 5)),)
)
REPORT = TraceReport(10_000, (PartySpans("balancer", "", 0, ()), WORKER, RANK))


def events(kind, report=REPORT):
    return [each for each in trace_events(report)["traceEvents"] if each["ph"] == kind]


def check_trace(trace):
    """Hold a trace against the rules of Chrome's trace events, as Perfetto reads them.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: what each kind
    has; times of 0 or later; spans of a row that lie apart or in each other; arrows that begin and
    end once, within a span each, the end no earlier; names of processes and rows before their use.
    """
    named, rows, arrows = set(), defaultdict(list), defaultdict[Any, dict](dict)
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            named.add((event["pid"], event.get("tid")))
            continue
        row = event["pid"], event["tid"]
        assert {row, (event["pid"], None)} <= named
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[row].append((event["ts"], event["ts"] + event["dur"]))
            continue
        assert event["ph"] in "sf"
        assert event["ph"] not in arrows[event["cat"], event["id"]]
        assert event["ph"] == "s" or event["bp"] == "e"
        arrows[event["cat"], event["id"]][event["ph"]] = event
    for spans in rows.values():
        open_until = []
        for begin, end in sorted(spans, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    for pair in arrows.values():
        assert pair["s"]["ts"] <= pair["f"]["ts"]
        for each in pair.values():
            spans = rows[each["pid"], each["tid"]]
            assert any(begin <= each["ts"] <= end for begin, end in spans)


def test_a_trace_keeps_the_rules_of_its_format():
    check_trace(trace_events(REPORT))


def test_what_began_before_the_trace_is_at_its_beginning():
    early = replace(WORKER, spans=(Span("decode", 14_000, 16_200, (), (3,)),))
    report = TraceReport(10_000, (REPORT.parties[0], early, RANK))
    check_trace(trace_events(report))
    assert events("X", report)[0]["ts"] == 0
    assert events("X", report)[1]["ts"] == 12_000 + 2000 - 9000


def test_times_are_the_balancers_since_the_trace_began():
    spans = {(each["name"], tuple(each["args"]["samples"])): each for each in events("X")}
    assert spans["decode", (3,)]["ts"] == 16_000 - 5000 - 10_000
    assert spans["carry, until asked for", (3, 5)]["ts"] == 12_000 + 2000 - 10_000
    assert spans["decode", (3,)]["dur"] == 1000
    assert spans["carry, until asked for", (3, 5)]["args"]["step"] == 1


def test_spans_of_a_row_do_not_overlap():
    rows = {tuple(each["args"]["samples"]): each["tid"] for each in events("X") if each["pid"] == 1}
    assert rows[3,] == rows[4,] != rows[5,]


def test_arrows_lead_from_where_a_sample_was_decoded_to_its_rank():
    begins, ends = events("s"), events("f")
    assert [each["id"] for each in begins] == [each["id"] for each in ends] == [0, 1]
    assert [each["ts"] for each in begins] == [1999, 2499]  # in the last moment of their spans
    assert {each["pid"] for each in begins} == {1}
    assert {each["pid"] for each in ends} == {2}


@pytest.mark.parametrize("kind", ["load", "measure"])
def test_arrows_lead_from_the_first_sample_of_a_batch_where_workers_make_parts(kind):
    part = replace(WORKER, spans=(Span(kind, 16_000, 17_000, (), (7, 3, 9)),))
    rank = replace(RANK, spans=(replace(RANK.spans[0], ordinals=(3,)),))
    report = TraceReport(10_000, (REPORT.parties[0], part, rank))
    check_trace(trace_events(report))
    assert [(each["pid"], each["ts"]) for each in events("s", report)] == [(1, 1999)]


def test_an_arrow_is_of_one_job_and_of_the_last_time_before():
    again = Span("decode", 26_000, 27_000, (), (3,))
    own = replace(WORKER, spans=(*WORKER.spans, again), job="a")
    other = replace(WORKER, job="b", spans=(Span("decode", 16_100, 16_900, (), (3,)),))
    report = TraceReport(10_000, (REPORT.parties[0], own, replace(RANK, job="a"), other))
    check_trace(trace_events(report))
    assert [(each["pid"], each["ts"]) for each in events("s", report)] == [(1, 1999), (1, 2499)]
    names = [each["args"]["name"] for each in events("M", report) if each["pid"] == 3]
    assert names[0].startswith("w, job b (clock")


def test_parties_are_named_with_their_clocks():
    names = [each["args"]["name"] for each in events("M") if each["name"] == "process_name"]
    assert names[0] == "balancer"
    assert names[1] == "w (clock +5.00 ms)"
