"""A trace as Chrome's events: on one clock, rows without overlaps, arrows from worker to rank."""

from counterpoise.balancer.protocol.trace_messages import PartySpans, Span, TraceReport
from counterpoise.tools.trace.chrome import trace_events

WORKER = PartySpans(
    "w", 5000, 10,
    (
        Span("decode", 16_000, 17_000, (), (3,)),
        Span("decode", 17_000, 18_000, (), (4,)),
        Span("decode", 16_500, 17_500, (), (5,)),
    ),
)  # fmt: skip
RANK = PartySpans(
    "r", -2000, 10, (Span("carry, until asked for", 12_000, 13_000, (0, 1, 2), (3, 5)),)
)
REPORT = TraceReport(10_000, (PartySpans("balancer", 0, 0, ()), WORKER, RANK))


def events(kind):
    return [each for each in trace_events(REPORT)["traceEvents"] if each["ph"] == kind]


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
    begins = {each["id"]: each for each in events("s")}
    ends = {each["id"]: each for each in events("f")}
    assert begins.keys() == ends.keys() == {3, 5}
    assert begins[3]["ts"] == 2000
    assert all(ends[n]["ts"] >= begins[n]["ts"] for n in ends)
    assert {each["pid"] for each in ends.values()} == {2}


def test_parties_are_named_with_their_clocks():
    names = [each["args"]["name"] for each in events("M") if each["name"] == "process_name"]
    assert names[0] == "balancer"
    assert names[1] == "w (clock +5.00 ms, within 0.01 ms)"
