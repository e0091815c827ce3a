"""Renders the report as one self-contained HTML page, from the jinja2 templates in `templates/`.

The first line says what balancing gains, the top card what to paste; every section below it names
the decision that it serves and whether its figures are measured, probed or modelled. Nothing is
loaded from elsewhere, and the page reads without its script. Templates hold all words and markup;
the functions in SECTIONS compute only what a template cannot: charts and a few values.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from markupsafe import Markup

from ....workers.sources.visible_text import visible
from ..model.strategies import STRATEGIES
from . import bars, costs
from .bars import COLOURS, Part, both_widths, page_environment, stacked, unbroken

Json = dict[str, Any]


def _waiting(report: Json) -> Json:
    """Return the bars of waiting by strategy."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["waiting"], found[n]["interval"]) for n in STRATEGIES]
    return {"chart": both_widths(partial(bars.bars, rows))}


def _padding(report: Json) -> Json:
    """Return the bars of padding by strategy."""
    return {"chart": _bars(report, "padding")}


def _images(report: Json) -> Json:
    """Return the bars of microbatches without images, None if the data have no tiles."""
    return {"chart": _bars(report, "no_images") if "tiles" in report["resources"] else None}


def _host(report: Json) -> Json:
    """Return how many worker processes the modelled speed takes, None if that is not known."""
    workers = report["host"].get("workers")
    return {"workers": None if workers is None else max(1, math.ceil(workers))}


def _pipelines(report: Json) -> Json:
    """Return the highest throughput of a schedule, the scale of the bars."""
    schedules = report["pipelines"].get("schedules", [])
    return {"fastest": max((one["balanced"]["samples_per_s"] for one in schedules), default=1.0)}


def _bars(report: Json, figure: str) -> Markup:
    found = report["strategies"]
    rows = [(name, COLOURS[name], found[name][figure], 0.0) for name in STRATEGIES]
    return both_widths(partial(bars.bars, rows))


# In the page's order. The name is the section's id and its template in templates/sections/.
# None in place of values leaves a section out.
SECTIONS: dict[str, Callable[[Json], Json | None]] = {
    "waiting": _waiting,
    "padding": _padding,
    "budgets": costs.budgets,
    "costs": costs.costs,
    # Of more sources, report.json has the others.
    "data": lambda _: {"most_sources": 14},
    "heaviest": costs.heaviest,
    "images": _images,
    "host": _host,
    "pipelines": _pipelines,
}


def headline(report: Json) -> str:
    """Return the first line: what balancing gains, and what makes that figure doubtful."""
    return ". ".join([_gain(report), *doubts(report)])


def doubts(report: Json) -> list[str]:
    """Return a sentence for each reason to doubt the gain, with the option that mends it."""
    if not report["costs_known"]:
        return []  # the first sentence has said it
    found = []
    if report["bytes_as_tokens"]:
        found.append("A byte counts as a token here: give --tokenizer MODULE:NAME for your own")
    if report["over_budget"]:
        share = bars.percent(report["over_budget"] / report["usable"], 2)
        found.append(
            f"{share} of the samples exceed a budget alone and get microbatches of their own"
        )
    if report["unreadable"]:
        count, analyzed = report["unreadable"], report["analyzed"]
        found.append(f"{count:,} of {analyzed:,} samples and shards cannot be read")
    return found


def _gain(report: Json) -> str:
    if not report["costs_known"]:
        return (
            "No sample's cost is known, each counts as 1, and nothing can be said: name a "
            "function from a sample to its cost with --cost MODULE:NAME"
        )
    if report["leave_off"]:
        return "Balancing would gain less than 3 %: leave it off"
    waiting, gain = (bars.percent(v, 0) for v in (report["waiting"]["random"], report["gain"]))
    return (
        f"Of your step, {waiting} is waiting for the slowest rank; the settings below recover "
        f"{gain} (model, not measurement)"
    )


def render_page(report: Json) -> str:
    """Return the page as HTML; `report` is what `make_report` returns and report.json holds."""
    environment = page_environment(__package__)
    sections = []
    for name, values in SECTIONS.items():
        found = values(report)
        if found is not None:
            template = environment.get_template(f"sections/{name}.html.j2")
            sections.append(Markup(template.render(report=report, **found)))
    page = environment.get_template("page.html.j2").render(
        report=report,
        headline=headline(report),
        gain=_gain(report),
        doubts=doubts(report),
        sections=sections,
        **_time_of_step(report),
    )
    return unbroken(visible(page))  # keys and reasons may hold any character


def _time_of_step(report: Json) -> Json:
    """Return the parts of the step's time now, and the chart that compares them with the plan's."""
    waiting, gain, padding = report["waiting"]["random"], report["gain"], report["gain_padding"]
    now = [Part("work", "--work", 1 - waiting - max(0.0, padding))]
    if padding > 0.001:
        now.append(Part("padding", "--padding", padding))
    now.append(Part("waiting", "--waiting", waiting))
    balanced = [
        Part("work", "--work", 1 - waiting - padding),
        Part("waiting", "--waiting", max(0.0, waiting - gain)),
    ]
    rows = [("Your step now", now), ("With these settings", balanced)]
    chart = both_widths(partial(stacked, rows))
    return {"time_now": now, "time_chart": chart}
