"""Prepares the sections about steps: waiting, padding, images, host, pipelines."""

import math
from functools import partial
from typing import Any

from markupsafe import Markup

from ..model.strategies import STRATEGIES
from .bars import COLOURS, bars, both_widths

Json = dict[str, Any]


def waiting(report: Json) -> Json:
    """Return the bars of waiting by strategy."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["waiting"], found[n]["interval"]) for n in STRATEGIES]
    return {"chart": both_widths(partial(bars, rows))}


def padding(report: Json) -> Json:
    """Return the bars of padding by strategy."""
    return {"chart": _bars(report, "padding")}


def images(report: Json) -> Json:
    """Return the bars of microbatches without images, None if the data have no tiles."""
    return {"chart": _bars(report, "no_images") if "tiles" in report["resources"] else None}


def host(report: Json) -> Json:
    """Return how many worker processes the modelled speed takes, None if that is not known."""
    workers = report["host"].get("workers")
    return {"workers": None if workers is None else max(1, math.ceil(workers))}


def pipelines(report: Json) -> Json:
    """Return the highest throughput of a schedule, the scale of the bars."""
    schedules = report["pipelines"].get("schedules", [])
    return {"fastest": max((one["balanced"]["samples_per_s"] for one in schedules), default=1.0)}


def _bars(report: Json, figure: str) -> Markup:
    found = report["strategies"]
    rows = [(name, COLOURS[name], found[name][figure], 0.0) for name in STRATEGIES]
    return both_widths(partial(bars, rows))
