"""What a loop's figures say in common words: three lines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .families import DELIVERED, FORECAST, RANDOM

NOT_KNOWN = "not known: only a balanced loop without a balancer sees what all ranks get"


def read_forecast(path: Path) -> dict[str, Any]:
    """Return the forecast in a report of `counterpoise analyze` or `try`; ValueError for others."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        shares = {name: float(report["forecast"][name]) for name in ("waiting", "waited")}
        return {"ranks": int(report["settings"]["ranks"]), **shares}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no forecast ({type(error).__name__}: {error}): give the "
            "report.json that `counterpoise analyze DATA` has written, or what `try --json` says"
        ) from error


def report_lines(
    stats: Mapping[str, Any], forecast: Mapping[str, Any] | None = None
) -> tuple[str, str, str]:
    """Return a line each on data, ranks and samples; stats: as stats() returns them."""
    return (
        f"data     {_data(stats)}",
        f"ranks    {_ranks(stats)}{_foretold(stats, forecast)}",
        f"samples  {_samples(stats)}",
    )


def _data(stats: Mapping[str, Any]) -> str:
    if not stats["steps"]:
        return "nothing was handed out yet"
    return (
        f"{stats['wait_share']:.1%} of the time spent waiting for data; first batch after "
        f"{stats['start_seconds']:.1f} s; {stats['samples_per_second']:,.0f} samples/s in this "
        "process"
    )


def _ranks(stats: Mapping[str, Any]) -> str:
    shares = stats["waiting"]
    if stats["ranks"] == 1:
        return "one, which waits for no other"
    if not shares:
        return NOT_KNOWN
    return (
        f"{stats['ranks']} ranks waited {shares[DELIVERED]:.1%} of the time for the slowest "
        f"(planned: {shares[FORECAST]:.1%}); in random order {shares[RANDOM]:.1%}, and steps "
        f"{stats['random_over_delivered']:.2f} times as long; counted by costs"
    )


def _foretold(stats: Mapping[str, Any], forecast: Mapping[str, Any] | None) -> str:
    if forecast is None:
        return ""
    text = f"; foretold {forecast['waiting']:.1%}, in random order {forecast['waited']:.1%}"
    is_other = stats["ranks"] not in (None, forecast["ranks"])
    return text + (f", for {forecast['ranks']} ranks" if is_other else "")


def _samples(stats: Mapping[str, Any]) -> str:
    holes = ", ".join(f"{count:,} {why}" for why, count in stats["holes"].items())
    shares = [f"{share:.1%} of {name}" for name, share in stats["padding_share"].items()]
    return (
        f"{stats['samples']:,} in {stats['steps']:,} steps of this process; left out: "
        f"{holes or 'none'}; padding: {', '.join(shares) or 'not known'}"
    )
