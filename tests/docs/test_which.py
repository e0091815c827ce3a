"""docs/which.md leads to what is there: scripts, names of the package, rows for every script."""

import re

import counterpoise as cp
from tests.docs.pages import page_named
from tests.imports import ROOT

PAGE = page_named("which").read_text()
# Scripts that show one thing of a page, which names them itself.
SHOWN_ELSEWHERE = {"examples/own_schedule.py", "examples/recompute.py"}


def test_its_scripts_are_those_that_there_are() -> None:
    named = set(re.findall(r"examples/[\w/]+\.py", PAGE))
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")}
    assert named == scripts - SHOWN_ELSEWHERE


def test_its_names_are_the_packages() -> None:
    names = set(re.findall(r"\bcp\.([\w.]+)", PAGE))
    assert len(names) > 10
    for name in names:
        found = cp
        for part in name.split("."):
            found = getattr(found, part)


def test_readers_are_led_to_it_first() -> None:
    readme = (ROOT / "README.md").read_text()
    start = re.search(r"^- Start: \[.*?\]\((.*?)\) · \[.*?\]\((.*?)\)", readme, re.M)
    assert start is not None
    assert start.groups() == ("docs/start.md", "docs/which.md")
    for page in ("start", "index", "loop-pictures"):
        assert "which.md)" in page_named(page).read_text(), page
