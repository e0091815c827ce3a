"""Looks at a page as people do: at three widths, in both themes."""

from collections.abc import Iterator
from pathlib import Path

from tests.browser import Browser

WIDTHS = (400, 800, 1400)
THEMES = ("light", "dark")
SCRIPT = Path(__file__).with_name("faults.js").read_text("utf-8").split("\n", 1)[1].strip()


def faults_of(browser: Browser, page: str) -> Iterator[str]:
    """Yield what is wrong with a page's text: a line for each fault, with width and theme."""
    for theme in THEMES:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.call("Emulation.setEmulatedMedia", media="", features=features)
        for width in WIDTHS:
            # as high as the page, so that every point of it can be asked for
            size = {"width": width, "height": 20_000, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.open(page)
            yield from (f"{width} px, {theme}: {each}" for each in browser.see(SCRIPT))
            yield from (f"{width} px, {theme}: {each}" for each in browser.faults)
