"""The page of reports in headless Chromium: what a person would see, read from the DOM."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from counterpoise.tools.console.page import Card, Part, Paste, render_report
from tests.browser import chromium as chromium

Browser = Any  # the driver in tests/browser.py
BARS = [("now", [Part("work", "--work", 0.75), Part("waiting", "--waiting", 0.25)]),
        ("then", [Part("work", "--work", 0.5)])]  # fmt: skip


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    yield chromium
    assert chromium.faults == []


def render(words: str, bars: Any) -> str:
    card = Card("rows", words, "measured", words, (words,), [[words]], [words])
    return render_report(words, words, bars, Paste(words, words, words), [card], words, words)


def test_a_report_escapes_all_that_it_is_given(page: Browser) -> None:
    bad = "</pre></td><img src=x onerror=alert(1)>"
    page.open(render(bad, [(bad, [Part(bad, "--work", 1.0)])]))
    assert page.see('document.querySelectorAll("img").length') == 0
    assert page.see('document.getElementById("settings").textContent') == bad


def test_bars_are_as_long_as_their_values(page: Browser) -> None:
    page.open(render("words", BARS))
    widths = page.see(
        '[...document.querySelectorAll(".bar span")].map(e => e.getBoundingClientRect().width)'
    )
    whole = page.see('document.querySelector(".bar").getBoundingClientRect().width')
    assert [width / whole for width in widths] == pytest.approx([0.75, 0.25, 0.5], abs=0.01)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = render("words", BARS)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert not re.findall(r"https?://[^\s\"'`)]+|@import", text)
