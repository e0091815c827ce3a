"""Prepares the sections about the data: budgets, costs, counts by source, the heaviest samples."""

from functools import partial
from typing import Any

from markupsafe import Markup

from .formats import percent, whole
from .frontier import Mark, TriedBudgets, frontier_chart
from .heat_map import Histogram, heat_map
from .widths import both_widths

MOST_SOURCES = 14
Json = dict[str, Any]


def budgets(report: Json) -> Json:
    """Return the chart of feasible budgets, and the budgets given if they differ from the search's.

    chosen: one budget for each resource, or None.
    """
    found = report["budgets"]
    recommended = report["recommended"]["balance"]["budgets"]
    chosen = [recommended[name] for name in found["resources"]]
    return {
        "chart": _frontier(found) if found["frontier"] else None,
        "chosen": chosen if chosen != list(found["searched"]["budgets"]) else None,
    }


def costs(report: Json) -> Json:
    """Return the heat map of tiles and tokens, if both are there."""
    joint, limits = report["joint"], report["recommended"]["balance"]["budgets"]
    chart = None
    if joint:
        limit = (limits["tiles"], limits["tokens"]) if "tiles" in limits else None
        histogram = Histogram(joint["tokens"], joint["tiles"], joint["counts"])
        chart = both_widths(partial(heat_map, histogram, limit))
    is_sample = any("intervals" in cost for cost in report["resources"].values())
    return {"chart": chart, "is_sample": is_sample}


def data(_: Json) -> Json:
    """Return the number of sources listed; report.json has the others."""
    return {"most_sources": MOST_SOURCES}


def heaviest(report: Json) -> Json:
    """Return the heaviest microbatches of random and balanced in pairs, and the bars' scales."""
    found = report["heaviest"]
    random, balanced = found["microbatches"]["random"], found["microbatches"]["balanced"]
    pairs = zip(random, balanced, strict=False)
    return {
        "microbatches": [(("random", a), ("balanced", b)) for a, b in pairs],
        "heaviest_sample": _most(found["samples"]),
        "heaviest_microbatch": _most(random),
    }


def _most(rows: list[Json]) -> float:
    return max([1.0, *(float(row["times_mean"]) for row in rows)])


def _frontier(found: Json) -> Markup:
    """Return the chart of what fits in memory, with OmniBal's and the searched budgets marked."""
    x, y = found["resources"].index("tokens"), found["resources"].index("tiles")
    searched, omnibal = found["searched"]["budgets"], found["omnibal"]["budgets"]
    marks = [
        Mark("searched", "--balanced", searched[x], searched[y]),
        Mark("OmniBal", "--random", omnibal[x], omnibal[y]),
    ]
    if searched == omnibal:
        marks = [Mark("both", "--balanced", searched[x], searched[y])]
    trials = [
        TriedBudgets(
            one["budgets"][x],
            one["budgets"][y],
            f"{one['budgets'][y]} tiles, {one['budgets'][x]:,} tokens: waiting "
            f"{percent(one['waiting'])}, time {whole(one['time'])}",
        )
        for one in found["tried"]
    ]
    border = [(a, b) for a, b in found["frontier"]]
    return both_widths(partial(frontier_chart, border, marks, trials))
