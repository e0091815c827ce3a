"""The site is built strictly, is complete, fetches nothing, and is whole on narrow screens."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import Browser, chromium  # noqa: F401
from tests.docs.pages import DOCS
from tests.imports import ROOT

# The hook imports torch, and 150 pages are rendered: minutes on a loaded machine.
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]

# of the extra `docs`, which environments of other tests do not have
pytest.importorskip("mkdocs")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
# A page of each kind
LOOKED_AT = (
    "which.html", "guides/auto.html", "reference/api.html", "reference/api/DataLoader.html",
    "reference/cli/analyze.html", "notebooks/first-loop.html",
    "notebooks/schedules-and-bubbles.html",
)  # fmt: skip


class References(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        given = {name: value or "" for name, value in attrs}
        self.places |= {given.get("id", ""), given.get("name", "")}
        if tag == "a":
            self.links.append(given.get("href", ""))
        # a `link` that is not loaded says where the page belongs
        elif tag in LOADED and given.get("rel", "stylesheet") in ("stylesheet", "icon"):
            self.loaded.append(given.get(LOADED[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built strictly; the proxy lets nothing through to the net."""
    folder = tmp_path_factory.mktemp("site")
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mkdocs", "-q", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, References]:
    """Return what each page refers to."""
    return {page: References(page) for page in site.rglob("*.html") if page.name != "404.html"}


def test_every_page_has_its_place(site: Path, pages: dict[Path, References]) -> None:
    names = {str(page.relative_to(site).with_suffix("")) for page in pages}
    written = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert names >= written - {"index"}
    assert {"reference/api/DataLoader", "reference/cli/analyze", "notebooks/first-loop"} <= names


def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, References]) -> None:
    for page, found in pages.items():
        for link in found.links:
            split = urlsplit(link)
            if split.scheme or split.netloc or not link:
                continue
            target = (page.parent / unquote(split.path)).resolve() if split.path else page
            assert target.exists(), f"{page}: {link}"
            if split.fragment and target.suffix == ".html" and target in pages:
                assert unquote(split.fragment) in pages[target].places, f"{page}: {link}"


def test_nothing_is_fetched_from_the_net(pages: dict[Path, References]) -> None:
    for page, found in pages.items():
        assert not [each for each in found.loaded if re.match(r"(https?:)?//", each)], page


def test_language_models_find_every_page(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert text.startswith("# counterpoise\n\n> ")
    listed = re.findall(r"^- \[.+?\]\((.+?)\): \S.*\.$", text, re.M)
    assert listed
    assert all((site / page).exists() for page in listed)
    assert len(listed) == len(re.findall(r"^- ", text, re.M))
    assert "cp.DataLoader(" in (site / "llms-full.txt").read_text()


def test_the_search_knows_names_of_the_api(site: Path) -> None:
    assert "BalancedBatchSampler" in (site / "search" / "search_index.js").read_text()


def widen(browser: Browser, width: int) -> None:
    """Give the browser's window a width, in pixels."""
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip


@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_is_wider_than_the_screen(site: Path, chromium: Browser, width: int) -> None:  # noqa: F811
    widen(chromium, width)
    for page in LOOKED_AT:
        chromium.visit(site / page)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert chromium.see(wide) <= 0, page
        assert chromium.faults == [], page


@pytest.mark.parametrize("width", [800, 1300])
def test_the_home_shows_whole_lines(site: Path, chromium: Browser, width: int) -> None:  # noqa: F811
    widen(chromium, width)
    chromium.visit(site / "index.html")
    blocks = "[...document.querySelectorAll('pre, pre code')]"
    assert chromium.see(f"{blocks}.length") > 0
    assert chromium.see(f"Math.max(...{blocks}.map(b => b.scrollWidth - b.clientWidth))") <= 0


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_and_prints_what_it_kept(notebook: Path) -> None:
    from tests.docs.generate.execute import executed, texts

    kept = texts(nbformat.read(notebook, as_version=4))
    assert texts(executed(notebook)) == kept, "run `make notebooks`"
