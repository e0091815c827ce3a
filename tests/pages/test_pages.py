"""Every page that the product makes, at three widths and in both themes.

A new page is one more entry of PAGES: a function that writes it into a folder and returns its file.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from counterpoise.tools.cli import main
from tests.browser import Browser, chromium as chromium
from tests.tools.trial import kinds

from .checking import faults_of


def _run(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in words])
    assert not ended.value.code


def _costs(folder: Path) -> Path:
    rng, path = np.random.default_rng(0), folder / "costs.npz"
    tiles = rng.choice([0, 1, 2, 7, 12], 800, p=[0.2, 0.3, 0.2, 0.2, 0.1])
    tokens = np.clip(rng.lognormal(5, 0.8, 800), 20, 1500).astype(int) + 256 * tiles
    labels = np.where(np.arange(800) % 200, tokens // 3, np.nan)
    source = np.array(["<b>web</b> & co", "a book"])[tiles % 2]
    np.savez(path, tiles=tiles, tokens=tokens, label_tokens=labels, source=source)
    return path


def analyze(folder: Path) -> Path:
    _run("analyze", _costs(folder), "--out", folder / "out", "--json")
    return folder / "out" / "report.html"


def trial(folder: Path) -> Path:
    loader = f"{Path(kinds.__file__)}:make_loader"
    _run("try", loader, "--seconds", 1, "--out", folder / "page.html")
    return folder / "page.html"


PAGES: Mapping[str, Callable[[Path], Path]] = {"analyze": analyze, "try": trial}
BROKEN = """<!doctype html><meta name="color-scheme" content="light dark"><style>
td { overflow-wrap: anywhere } #grey { color: #999 } #cut { overflow: hidden; width: 40px }
#wide { width: 1500px } #box { overflow-x: auto; width: 200px } #box p { width: 300px }
</style><table style="width: 24px"><tr><td>53,325</td></tr><tr><td>makespan</td></tr></table>
<p id="grey">grey</p><div id="cut">time&nbsp;per&nbsp;sample</div><p id="wide">wide</p>
<div id="box"><p>box</p></div>
<svg viewBox="0 0 90 9" width="45"><text y="8" font-size="8">tiny</text></svg>"""


@pytest.fixture
def page_size(chromium: Browser) -> Iterator[None]:
    yield
    chromium.call("Emulation.setEmulatedMedia", media="", features=[])


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("page_size")
def test_a_page_is_whole_at_every_width(
    chromium: Browser, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGES[name](tmp_path).read_text("utf-8")
    assert list(faults_of(chromium, page)) == []


@pytest.mark.usefixtures("page_size")
def test_each_kind_of_fault_is_found(chromium: Browser) -> None:
    found = "\n".join(faults_of(chromium, BROKEN))
    for fault in (
        "a number breaks: 53,325", "a word breaks: makespan", "contrast 2.8: grey",
        "is cut: time per sample", "the page is wider than the window: 15",
        "scrolls without a hint: box", "letters of 4.0 px: tiny",
    ):  # fmt: skip
        assert fault in found
