"""The page of analyze in headless Chromium: whole, silent, alone, readable on any ground."""

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.tools.analyze import document
from counterpoise.tools.analyze.document import headline
from counterpoise.tools.cli import main

Browser = Any  # the driver of tests/sched
IDS = ("step", "paste", "plans", "costs", "data", "reasons", "heaviest")


def render_page(report: dict[str, Any]) -> str:
    """The page with plain spaces before per cent signs, as figures are written here."""
    return document.render_page(report).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    tiles = rng.choice([0, 1, 2, 7, 12], 2000, p=[0.2, 0.3, 0.2, 0.2, 0.1])
    tokens = np.clip(rng.lognormal(5, 0.8, 2000), 20, 1500).astype(int) + 256 * tiles
    labels = np.where(np.arange(2000) % 400, tokens // 3, np.nan)
    source = np.array(["<b>web</b> & co", "a book"])[tiles % 2]
    np.savez(folder / "t.npz", tiles=tiles, tokens=tokens, label_tokens=labels, source=source)
    with pytest.raises(SystemExit):
        main(["analyze", str(folder / "t.npz"), "--out", str(folder / "out"), "--json"])
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return found


@pytest.fixture
def page(chromium: Browser, report: dict[str, Any]) -> Iterator[Browser]:
    chromium.open(render_page(report))
    yield chromium
    chromium.call("Emulation.setEmulatedMedia", media="", features=[])
    assert chromium.faults == []


def test_the_first_line_says_what_there_is_to_gain(page: Browser, report: dict[str, Any]) -> None:
    first = page.see("document.body.innerText.trim().split('\\n')[0]")
    told = (report["forecast"]["waited"], report["gain"])
    waiting, gain = (f"{100 * v:.0f} %" for v in told)
    line = (
        f"Of your step, {waiting} is waiting for the slowest rank; with the settings below it is "
        f"{gain} shorter (model, not measurement)"
    )
    assert re.sub(r"\s+", " ", first) == line
    assert re.sub(r"\s+", " ", page.see("document.title")) == line
    assert headline(report).startswith(line)


def test_it_says_what_each_plan_gives(page: Browser, report: dict[str, Any]) -> None:
    rows = page.see(
        "[...document.querySelectorAll('#plans tbody tr')]"
        ".map(row => [...row.cells].slice(0, 2).map(cell => cell.innerText.trim()))"
    )
    times = [1, report["forecast"]["time"], *report["other_plans"].values()]
    assert [time for _, time in rows] == [f"{100 * time:.0f} %" for time in times]
    options = 'waits="step"', 'Images("images")'
    codes = [f"the same with {option}" for option in options]
    assert [name for name, _ in rows][-2:] == codes


def test_where_nothing_is_to_gain_it_says_so(report: dict[str, Any]) -> None:
    sound = {"unreadable": 0, "over_budget": 0}
    text = render_page({**report, **sound, "leave_off": True})
    assert "<h1>Balancing would gain less than 3 %: leave it off</h1>" in text


def test_the_first_line_says_what_makes_it_doubtful(report: dict[str, Any]) -> None:
    sound = {**report, "unreadable": 0, "over_budget": 0}
    whole = headline(sound)
    share = sound["usable"] * 0.0674
    for change, said in (
        ({"bytes_as_tokens": True}, "A byte counts as a token here: give --transform MODULE:NAME"),
        ({"over_budget": share}, "6.74 % of the samples exceed a budget alone"),
        ({"unreadable": 5}, "5 of 2,000 samples and shards cannot be read"),
    ):
        assert said not in whole
        doubtful = {**sound, **change}
        assert headline(doubtful).startswith(f"{whole}. {said}")
        text = unescape(render_page(doubtful))
        assert f'<p class="doubts">{said}' in text


def test_without_costs_the_first_line_gives_no_advice(report: dict[str, Any]) -> None:
    line = headline({**report, "costs_known": False, "leave_off": True})
    assert "No sample's cost is known" in line
    assert "--cost MODULE:NAME" in line
    assert "leave it off" not in line


def test_every_section_is_there_with_its_decision_and_its_origin(page: Browser) -> None:
    found = page.see("[...document.querySelectorAll('section.card')].map((s) => s.id)")
    assert found == list(IDS)
    words = page.see(
        "[...document.querySelectorAll('main section')].map((s) => "
        "[s.querySelector('.decides').innerText, s.querySelectorAll('.tag').length])"
    )
    assert all(text and tags for text, tags in words)


def test_nothing_is_loaded_from_elsewhere(page: Browser, report: dict[str, Any]) -> None:
    assert page.see("performance.getEntriesByType('resource').map((e) => e.name)") == []
    text = render_page(report)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "@import" not in text
    assert re.findall(r"https?://", text) == []


def test_figures_on_the_page_are_the_reports(page: Browser, report: dict[str, Any]) -> None:
    tokens = page.see("document.querySelectorAll('#costs tbody tr')[1].innerText.split('\\t')")
    found = report["resources"]["tokens"]
    assert tokens[:4] == ["tokens", *(f"{found[q]:,}" for q in ("p50", "p90", "p99"))]
    assert (
        page.see("document.getElementById('settings').textContent")
        == (report["recommended"]["settings"])
    )


def test_names_from_the_data_are_text(page: Browser) -> None:
    names = page.see(
        "[...document.querySelectorAll('#data tbody tr td:first-child')].map((c) => c.innerText)"
    )
    assert {"<b>web</b> & co", "a book"} <= set(names)


def test_text_from_the_data_is_escaped(report: dict[str, Any]) -> None:
    evil = "<script>alert('x')</script>"
    sources = [{**report["sources"][0], "source": evil, "keys": {"unreadable": [evil]}}]
    reason = {"count": 1, "kind": "unreadable", "reason": evil, "keys": [evil]}
    hostile = {"inputs": [evil], "sources": sources, "reasons": [reason], "failures": [reason]}
    text = render_page({**report, **hostile})
    assert evil not in text
    assert text.count("<script>") == 1
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 4


def test_the_settings_can_be_pasted(report: dict[str, Any]) -> None:
    compile(report["recommended"]["settings"], "settings", "exec")


def test_characters_that_something_would_act_on_are_made_visible(report: dict[str, Any]) -> None:
    evil = "\x1b[31m\x07\u202eevil\udcff"
    hostile = {"inputs": [evil], "sources": [{**report["sources"][0], "source": evil}]}
    text = render_page({**report, **hostile})
    assert text.count(r"\x1b[31m\x07\u202eevil\udcff") == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)


def test_on_paper_nothing_is_cut_off(page: Browser) -> None:
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    size = {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    wide = page.see("document.documentElement.scrollWidth")
    page.call("Emulation.setDeviceMetricsOverride", **{**size, "width": 1400})
    assert wide <= 720
    assert page.see("getComputedStyle(document.getElementById('copy')).display") == "none"


def test_the_page_is_written_where_it_was_asked_for(report: dict[str, Any], tmp_path: Path) -> None:
    text = render_page(report)
    assert text.startswith("<!doctype html>")
    assert len(text) < 400_000
    assert "undefined" not in unescape(text)
