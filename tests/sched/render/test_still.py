"""The still pictures: SVG, Chrome trace and text all say what the timeline says."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from counterpoise.sched import Costs, schedule, simulate
from counterpoise.sched.render.summary import MemoryUnit, format_memory, format_time
from counterpoise.sched.render.svg import render_svg
from counterpoise.sched.render.text import render_text
from counterpoise.sched.render.trace import render_trace
from counterpoise.sched.simulation.timeline import Timeline

MS = 10**6
COSTS = Costs(
    {"F": MS, "B": 2 * MS, "I": MS, "W": MS, "S": MS // 5, "T": MS // 5, "C": 0},
    p2p_ns=MS // 10,
    collective_ns=dict.fromkeys(("CX", "CS", "CG"), MS // 2),
    buffer_bytes={"activation": 2**20},
)
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "v-half", "1f1b-alg2")
NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=NAMES)
def timeline(request: pytest.FixtureRequest) -> Timeline:
    return simulate(schedule(request.param, ranks=4, microbatches=8), COSTS)


def test_svg_draws_every_pass_once_as_long_as_it_is(timeline: Timeline) -> None:
    root = ElementTree.fromstring(render_svg([timeline]))
    boxes = [box for box in root.iter(f"{NS}rect") if box.find(f"{NS}title") is not None]
    drawn = Counter((box[0].text or "").split(",")[0] for box in boxes)
    expected = Counter(str(slot.what) for row in timeline.ranks for slot in row)
    assert expected <= drawn
    assert drawn.total() == expected.total() + sum(map(len, timeline.lanes.values()))
    scale = (1200 - 64 - 48) / timeline.makespan_ns
    slots = {str(slot.what): slot for row in timeline.ranks for slot in row}
    for box in boxes:
        if slot := slots.get((box[0].text or "").split(",")[0]):
            assert float(box.attrib["x"]) == pytest.approx(88 + slot.start_ns * scale, abs=0.1)
            long = max(0.4, (slot.end_ns - slot.start_ns) * scale)
            assert float(box.attrib["width"]) == pytest.approx(long, abs=0.1)


def test_svg_lies_within_its_own_borders(timeline: Timeline) -> None:
    root = ElementTree.fromstring(render_svg([timeline, timeline], title="Two < three & more"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    paper, *boxes = root.iter(f"{NS}rect")
    assert paper.attrib["width"] == paper.attrib["height"] == "100%"
    for box in boxes:
        x, y = float(box.get("x", "0")), float(box.get("y", "0"))
        assert 0 <= x <= x + float(box.attrib["width"]) <= width
        assert 0 <= y <= y + float(box.attrib["height"]) <= height


def test_svg_stands_alone_and_knows_the_dark(timeline: Timeline) -> None:
    text = render_svg([timeline])
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in text


def test_trace_has_each_pass_at_its_time_on_its_rank(timeline: Timeline) -> None:
    events = json.loads(render_trace([timeline]))["traceEvents"]
    complete = {
        (event["tid"], event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in events
        if event["ph"] == "X"
    }
    expected = {
        (rank, str(slot.what), slot.start_ns, slot.end_ns - slot.start_ns)
        for rank, row in enumerate(timeline.ranks)
        for slot in row
    }
    assert expected <= complete


def test_trace_events_have_what_the_format_asks_for(timeline: Timeline) -> None:
    events = json.loads(render_trace([timeline, timeline]))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    for event in events:
        assert isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert all(begins[one]["ts"] <= ends[one]["ts"] for one in begins)


def test_trace_counts_memory(timeline: Timeline) -> None:
    events = json.loads(render_trace([timeline]))["traceEvents"]
    for rank, most in enumerate(timeline.peak_bytes):
        name = f"memory, rank {rank}"
        assert most == max(e["args"]["bytes"] for e in events if e["name"] == name)


def test_text_is_to_scale() -> None:
    costs = Costs({"F": 1, "B": 2})
    text = render_text(simulate(schedule("1f1b", ranks=2, microbatches=3), costs))
    assert text.splitlines() == [
        "1f1b  12 ns, bubble 25.0 %, peak 2 B",
        "        0              5 ns           10 ns",
        "rank 0  F0-F1-......B0----F2-B1----...B2----",
        "rank 1  ...F0-B0----F1-B1----F2-B2----......",
    ]


def test_text_of_uneven_times_is_a_character_a_piece_of_time() -> None:
    costs = Costs({"F": 1_000_003, "B": 1_999_993})
    text = render_text(simulate(schedule("1f1b", ranks=2, microbatches=2), costs), columns=44)
    assert text.splitlines()[2:] == [
        "rank 0  F0--F1--........B0------....B1------",
        "rank 1  ....F0--B0------F1--B1------........",
    ]


def test_text_keeps_to_the_columns_it_is_given(timeline: Timeline) -> None:
    for columns in (40, 80, 200):
        lines = render_text(timeline, columns).splitlines()[2:]
        assert max(map(len, lines)) <= columns


def test_text_shows_every_pass_that_has_room(timeline: Timeline) -> None:
    text = render_text(timeline, 2000)
    for row in timeline.ranks:
        for slot in row:
            assert f"{slot.what.kind}{slot.what.microbatch}" in text


def test_no_room_for_text_is_one_clear_line(timeline: Timeline) -> None:
    with pytest.raises(ValueError, match="8 columns are too few to draw in; give 28 or more"):
        render_text(timeline, 8)


@pytest.mark.parametrize("render", [render_svg, render_trace])
def test_nothing_to_draw_is_one_clear_line(render: object) -> None:
    with pytest.raises(ValueError, match="got no timelines; give at least one"):
        render([])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("ns", "words"), [(0, "0 ns"), (999, "999 ns"), (1_500_000, "1.5 ms"), (61 * 10**9, "61 s")]
)
def test_times_are_written_in_the_unit_that_suits(ns: int, words: str) -> None:
    assert format_time(ns) == words


def test_memory_is_written_in_its_unit() -> None:
    assert format_memory(80 * 2**30) == "80 GiB"
    assert format_memory(5, MemoryUnit("microbatches", 2)) == "2.5 microbatches"
