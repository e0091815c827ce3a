"""The compare page in headless Chromium: what a person would see and do, read from the DOM.

The mouse and the keyboard are real input events, and what the console says is collected by the
browser itself.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoise.sched import Costs, Pass, Program, schedule, simulate
from counterpoise.sched.render import html as page_module
from counterpoise.sched.render.html import render_html
from counterpoise.sched.simulation.timeline import Timeline
from counterpoise.tools.cli import main

MS = 10**6
Browser = Any  # the driver in conftest.py


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The page of `timelines()`; whatever a test does with it, the console stays silent."""
    chromium.open(render_html(timelines(), title="A & <b>"))
    yield chromium
    chromium.see("null")
    assert chromium.faults == []


def timelines() -> list[Timeline]:
    """Two schedules of different lengths and kinds, the second with chunks."""
    rows = tuple(
        tuple(Pass(s, "F", m) for s in (low, high) for m in range(3))
        + tuple(Pass(s, k, m) for s in (high, low) for k in "IW" for m in range(3))
        for low, high in ((0, 2), (1, 3))
    )
    split = Program(rows, (0, 1, 0, 1), 3, name="split")
    costs = Costs({"F": 2 * MS, "B": 4 * MS, "I": 2 * MS, "W": MS})
    return [simulate(schedule("1f1b", ranks=3, microbatches=5), costs), simulate(split, costs)]


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = render_html(timelines())
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) == {"http://www.w3.org/2000/svg"}


def test_every_pass_is_drawn_where_and_as_long_as_it_is(page: Browser) -> None:
    left, _, whole, _ = page.see('box(plot(0).querySelector(".area"))')
    scale = whole / max(one.makespan_ns for one in timelines())
    panels = page.see(
        """[...document.querySelectorAll(".plot")].map((one) =>
        [...one.querySelectorAll(".pass")].map((node) => [
          node.dataset.row, node.dataset.pass, node.getAttribute("fill"), ...box(node)
        ]))"""
    )
    for timeline, drawn in zip(timelines(), panels, strict=True):
        expected = {
            (f"rank {rank}", str(slot.what)): slot
            for rank, row in enumerate(timeline.ranks)
            for slot in row
        }
        assert len(drawn) == len(expected)
        for row, name, fill, x, _, width, height in drawn:
            slot = expected.pop((row, name))
            assert x == pytest.approx(left + slot.start_ns * scale, abs=1)
            assert width == pytest.approx((slot.end_ns - slot.start_ns) * scale, abs=1.5)
            assert height > 5
            assert re.fullmatch("#[0-9a-f]{6}", fill)
        assert not expected


def test_the_command_makes_the_page(
    chromium: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("1f1b", "zb-h1", "zbv", "v-half-alg2")
    out = tmp_path / "compared.html"
    with pytest.raises(SystemExit) as ended:
        main(["schedule", "compare", *names, "--collective", "0.5", "--out", str(out)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("microbatches") == len(names)
    chromium.open(out.read_text())
    drawn = chromium.see(
        """[...document.querySelectorAll(".plot")].map((one) =>
        [...one.querySelectorAll('.pass[data-row^="rank"]')].length)"""
    )
    programs = [schedule(name, ranks=4, microbatches=8) for name in names]
    assert drawn == [program.passes for program in programs]
    lanes = chromium.see(
        """[...plot(3).querySelectorAll('.pass:not([data-row^="rank"])')].length"""
    )
    assert lanes == 3 * 8
    assert chromium.faults == []


def test_passes_say_their_kind_and_microbatch(page: Browser) -> None:
    labels = page.see('[...plot(0).querySelectorAll(".label")].map((node) => node.textContent)')
    assert sorted(labels) == sorted(3 * [f"{kind}{m}" for kind in "FB" for m in range(5)])


def test_the_legend_names_every_kind_and_the_bubble(page: Browser) -> None:
    legend = page.see('document.getElementById("legend").textContent')
    for words in ("F forward", "B backward", "I backward, inputs", "W backward", "bubble"):
        assert words in legend
    assert page.see('document.querySelector("h1").textContent') == "A & <b>"


def test_key_figures_are_those_of_the_timelines(page: Browser) -> None:
    rows = page.see(
        '[...document.querySelectorAll("#glance tbody tr")].map((row) => row.innerText)'
    )
    for timeline, row in zip(timelines(), rows, strict=True):
        assert timeline.name in row
        assert f"{timeline.makespan_ns // MS}\u202fms" in row
        assert f"{100 * timeline.bubble_ratio:.1f}\u202f%" in row


def test_each_rank_has_a_memory_curve(page: Browser) -> None:
    drawn = page.see(
        """[...document.querySelectorAll(".plot")]
        .map((one) => one.querySelectorAll(".memory-line").length)"""
    )
    assert drawn == [len(one.ranks) for one in timelines()]


def test_steps_without_memory_have_no_column_for_it(page: Browser) -> None:
    heads = 'document.querySelectorAll("#glance th").length'
    with_memory = page.see(heads)
    step = replace(timelines()[0], memory=(((0, 0),),) * 3)
    page.open(render_html([step, step]))
    assert page.see(heads) == with_memory - 1
    assert page.see('document.querySelectorAll("#glance tbody td").length') == 2 * (with_memory - 1)
    assert page.see('document.querySelectorAll(".memory-line").length') == 0


def test_hovering_a_pass_tells_what_it_is(page: Browser) -> None:
    assert page.see("tip()") is None
    page.move(page.see('center(find(0, "1B3"))'))
    said = page.see("tip()")
    slot = next(s for s in timelines()[0].ranks[1] if str(s.what) == "1B3")
    for words in ("1B3", "backward", "rank\t1", "microbatch\t3", "duration\t4\u202fms", "memory"):
        assert words in said
    assert f"start\t{slot.start_ns // MS}\u202fms" in said
    assert f"end\t{slot.end_ns // MS}\u202fms" in said
    outlined = page.see('box(document.querySelector(".hovered"))')
    assert outlined == pytest.approx(page.see('box(find(0, "1B3"))'), abs=1.5)
    page.move([2, 2])
    assert page.see("tip()") is None


def test_hovering_tells_stage_and_chunk(page: Browser) -> None:
    page.move(page.see('center(find(1, "2I0"))'))
    assert "stage\t2, chunk 1" in page.see("tip()")


def test_hovering_a_gap_tells_how_long_the_bubble_is(page: Browser) -> None:
    left = page.see('box(plot(0).querySelector(".area"))[0]')
    page.move([left + 4, page.see('center(find(0, "2F0"))[1]')])
    said = page.see("tip()")
    assert said.startswith("bubble")
    assert "length\t4\u202fms" in said


def scale(page: Browser) -> float:
    """Pixels a millisecond, as the axis says; the grids of all panels agree with it."""
    marks = page.see(
        """[...document.querySelectorAll("#axis text")]
        .map((mark) => [+mark.getAttribute("x"), parseFloat(mark.textContent)])"""
    )
    grids = page.see(
        """[...document.querySelectorAll(".plot")].map((one) =>
        [...one.querySelectorAll(".grid line")].map((line) => +line.getAttribute("x1")))"""
    )
    (x, first), (right, last) = marks[0], marks[-1]
    assert len({tuple(grid) for grid in grids}) == 1
    assert grids[0][-1] - grids[0][0] == pytest.approx(right - x)
    return float((right - x) / (last - first))


def test_buttons_and_keys_zoom_all_panels_in_step(page: Browser) -> None:
    start = scale(page)
    page.see('document.getElementById("in").click()')
    page.key("+", "+")
    assert scale(page) > 2 * start
    assert page.see('find(0, "2B4").style.display') == "none"
    page.key("-", "-")
    page.see('document.getElementById("out").click()')
    assert scale(page) == pytest.approx(start, abs=0.5)
    page.key("+", "+")
    page.key("0", "0")
    assert scale(page) == pytest.approx(start)


def test_dragging_zooms_to_the_range_and_a_double_click_goes_back(page: Browser) -> None:
    start = scale(page)
    x, y = page.see('center(find(0, "0F1"))')
    page.press([x, y])
    page.move([x + 60, y], pressed=True)
    page.move([x + 120, y], pressed=True)
    page.release([x + 120, y])
    assert scale(page) > 3 * start
    page.see('plot(0).dispatchEvent(new MouseEvent("dblclick", { bubbles: true }))')
    assert scale(page) == pytest.approx(start)


def test_the_wheel_with_ctrl_zooms_about_the_pointer(page: Browser) -> None:
    start = scale(page)
    at = page.see('center(find(0, "1B0"))')
    page.mouse("mouseWheel", at, deltaX=0, deltaY=-300, modifiers=2)
    assert scale(page) > 1.5 * start
    assert page.see('center(find(0, "1B0"))') == pytest.approx(at, abs=1)


def test_arrow_keys_walk_from_pass_to_pass(page: Browser) -> None:
    page.see("plot(0).focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.key(key)
    assert page.see("tip()").startswith("1F")
    page.key("Escape")
    assert page.see("tip()") is None


def test_a_click_follows_a_microbatch_through_all_panels(page: Browser) -> None:
    at = page.see('center(find(0, "1F2"))')
    page.move(at)
    page.press(at)
    page.release(at)
    same = sum(s.what.microbatch == 2 for one in timelines() for row in one.ranks for s in row)
    assert page.see('document.querySelectorAll(".kin.outline").length') == same
    assert page.see('document.querySelectorAll(".veil").length') == 2
    page.key("Escape")
    assert page.see('document.querySelectorAll(".veil").length') == 0


def test_c_shows_the_critical_path(page: Browser) -> None:
    page.key("c", "c")
    shown = page.see('document.querySelectorAll(".critical").length')
    assert shown == sum(len(one.critical) for one in timelines())


def test_a_large_page_paints_on_a_canvas_and_still_hovers(
    page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "DOM_LIMIT", 10)
    page.open(render_html(timelines()))
    assert page.see('document.querySelectorAll(".pass").length') == 0
    colours = page.see(
        """(() => {
          const canvas = plot(0).querySelector("canvas");
          const { width, height } = canvas;
          const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
          const hex = (byte) => byte.toString(16).padStart(2, "0");
          const found = new Set();
          for (let i = 0; i < data.length; i += 4)
            found.add("#" + hex(data[i]) + hex(data[i + 1]) + hex(data[i + 2]));
          return [...found];
        })()"""
    )
    assert {"#4961d4", "#fbb02d"} <= set(colours)
    x, y, _, _ = page.see('box(plot(0).querySelector(".area"))')
    page.move([x + 3, y + 8])
    assert page.see("tip()").startswith("0F0")


def test_text_from_outside_cannot_break_out_of_the_page(page: Browser) -> None:
    first, second = timelines()
    fields = {name: getattr(first, name) for name in Timeline.__slots__}
    bad = Timeline(**fields | {"name": "</script><img src=x>"})
    page.open(render_html([bad, second], subtitle="@DATA@ </title><img src=y>"))
    names = page.see('[...document.querySelectorAll("h2")].map((h) => h.firstChild.textContent)')
    assert names == ["</script><img src=x>", "split"]
    assert page.see('document.querySelectorAll("img").length') == 0
