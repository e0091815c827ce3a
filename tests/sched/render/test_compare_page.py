"""The page of timelines in headless Chromium: what a person would see, read from the DOM.

What the console says is collected by the browser itself.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoise.sched import Costs, Pass, Program, schedule, simulate
from counterpoise.sched.render.page import Card, Part, Paste, render_html, render_report
from counterpoise.sched.simulation.timeline import Timeline
from counterpoise.tools.cli import main

MS = 10**6
Browser = Any  # the driver in conftest.py


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The page of `timelines()`; the console stays silent."""
    chromium.open(render_html(timelines(), title="A & <b>"))
    yield chromium
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
    assert not re.findall(r"https?://[^\s\"'`)]+", text)


def test_every_pass_is_drawn_as_long_as_it_is(page: Browser) -> None:
    drawn = page.see(
        """[...document.querySelectorAll(".timeline rect.pass")].filter((one) => one.textContent)
        .map((one) => [one.textContent, +one.getAttribute("x"), +one.getAttribute("width")])"""
    )
    slots = [slot for one in timelines() for row in one.ranks for slot in row]
    assert [words.split(",")[0] for words, _, _ in drawn] == [str(slot.what) for slot in slots]
    scale = (1154 - 64 - 48) / max(one.makespan_ns for one in timelines())
    for slot, (_, left, width) in zip(slots, drawn, strict=True):
        assert left == pytest.approx(24 + 64 + slot.start_ns * scale, abs=1)
        assert width == pytest.approx((slot.end_ns - slot.start_ns) * scale, abs=1.5)


def test_the_command_makes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("1f1b", "zb-h1", "zbv", "v-half-alg2")
    out = tmp_path / "compared.html"
    with pytest.raises(SystemExit) as ended:
        main(["schedule", "compare", *names, "--collective", "0.5", "--out", str(out)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("microbatches") == len(names)
    text = out.read_text()
    passes = sum(schedule(name, ranks=4, microbatches=8).passes for name in names)
    # and three collectives for each of the microbatches, on lanes
    assert len(re.findall('<rect class="pass"[^>]*><title>', text)) == passes + 3 * 8


def test_the_legend_names_every_kind_and_the_bubble(page: Browser) -> None:
    words = page.see('document.querySelector(".timeline").textContent')
    for name in ("F forward", "B backward", "I backward, inputs", "W backward", "bubble"):
        assert name in words
    assert page.see('document.querySelector("h1").textContent') == "A & <b>"


def test_key_figures_are_those_of_the_timelines(page: Browser) -> None:
    rows = page.see(
        '[...document.querySelectorAll("#figures tbody tr")].map((row) => row.innerText)'
    )
    for timeline, row in zip(timelines(), rows, strict=True):
        assert timeline.name in row
        assert f"{timeline.makespan_ns // MS} ms" in row
        assert f"{100 * timeline.bubble_ratio:.1f}\N{NO-BREAK SPACE}%" in row


def test_steps_without_memory_have_no_column_for_it() -> None:
    step = replace(timelines()[0], memory=(((0, 0),),) * 3)
    assert "peak memory" in render_html(timelines())
    assert "peak memory" not in render_html([step, step])


def test_text_from_outside_cannot_break_out_of_the_page(page: Browser) -> None:
    first, second = timelines()
    fields = {name: getattr(first, name) for name in Timeline.__slots__}
    bad = Timeline(**fields | {"name": "</script><img src=x>"})
    page.open(render_html([bad, second], subtitle="@DATA@ </title><img src=y>"))
    assert page.see('document.querySelectorAll("img").length') == 0
    assert "</script><img src=x>" in page.see('document.querySelector(".timeline").textContent')


def test_a_report_escapes_all_that_it_is_given(page: Browser) -> None:
    bad = "</pre></td><img src=x onerror=alert(1)>"
    card = Card("rows", bad, "measured", bad, (bad,), [[bad]], [bad])
    bars = [(bad, [Part(bad, "--work", 1.0)])]
    page.open(render_report(bad, bad, bars, Paste(bad, bad, bad), [card], bad, bad))
    assert page.see('document.querySelectorAll("img").length') == 0
    assert page.see('document.getElementById("settings").textContent') == bad
