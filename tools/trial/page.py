"""The page of a trial: the table, the step as a picture, and the lines to paste."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...workers.sources.visible_text import visible
from ..analyze.page import bars

Json = dict[str, Any]


def render_page(report: Json, labels: Mapping[str, str]) -> str:
    """Return the page as HTML; nothing is loaded from elsewhere."""
    rows = [(labels[name].strip(), _parts(report, name)) for name in report["steps"]]
    page = bars.page_environment(__package__).get_template("trial.html.j2")
    chart = bars.both_widths(partial(bars.stacked, rows)) if rows else ""
    return visible(page.render(report=report, labels=labels, chart=chart))


def _parts(report: Json, name: str) -> list[bars.Part]:
    """Return the parts of a step, in units of torch's."""
    step, whole = report["steps"][name], report["steps"].get("torch", report["steps"][name])
    unit = step["ms"] / whole["ms"]
    shares = (
        ("work", "--work", 1 - step["ranks"] - step["data"]),
        ("ranks wait", "--waiting", step["ranks"]),
        ("waits for data", "--padding", step["data"]),
    )
    return [bars.Part(word, colour, unit * each) for word, colour, each in shares if each > 0.001]
