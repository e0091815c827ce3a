"""Sets what a run has kept of itself (`DataLoader(keep_stats="run.json")`) beside the forecast."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..console.reporting import make_table

Json = dict[str, Any]
# What must be in a file of a run.
NEEDED = ("rank", "steps", "samples", "wait_share", "padding_share", "waiting", "holes")


def read_runs(paths: Sequence[Path]) -> Json:
    """Return what happened, of the files of a run's processes; ValueError for other files."""
    runs = []
    for path in paths:
        try:
            runs.append(json.loads(path.read_text()))
            missing = [name for name in NEEDED if name not in runs[-1]]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no file of DataLoader(keep_stats=...): {error}") from error
        if missing:
            raise ValueError(f"{path} is no file of DataLoader(keep_stats=...): no {missing[0]!r}")
    steps = max(run["steps"] for run in runs)
    return {
        "processes": len(runs),
        "steps": steps,
        "samples_per_step": sum(run["samples"] for run in runs) / max(1, steps),
        "waiting": max((run["waiting"] for run in runs), key=len),
        "padding": max((run["padding_share"] for run in runs), key=len),
        "wait_for_data": max(run["wait_share"] for run in runs),
        "holes": sum(sum(run["holes"].values()) for run in runs),
    }


def beside_table(report: Json) -> Table:
    """Return the table of report["beside"] and the forecast of the balanced plan."""
    found, planned = report["beside"], report["strategies"]["balanced"]
    title = f"forecast, and what happened in {found['steps']:,} steps"
    table = make_table(title, "figure", "forecast", "happened")
    each = f"{found['samples_per_step']:,.1f} of {found['processes']} processes"
    table.add_row("samples a step", f"{planned['samples_per_step']:,.1f}", each)
    for kind, name in (("delivered", "balanced"), ("random", "random")):
        foretold, happened = report["waiting"][name], found["waiting"].get(kind)
        shown = "-" if happened is None else _percent(happened)
        table.add_row(f"ranks wait for the slowest, {name}", _percent(foretold), shown)
    for name, share in found["padding"].items():
        forecast = _percent(planned["padding"]) if name == "tokens" else "-"
        table.add_row(f"padding of {name}", forecast, _percent(share))
    table.add_row("the slowest rank waits for data", "-", _percent(found["wait_for_data"]))
    table.add_row("samples that could not be used", "-", str(found["holes"]))
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
