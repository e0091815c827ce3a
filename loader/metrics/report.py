"""What a loop's figures say to somebody who does not know our terms: three lines, and a picture."""

import html
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from .families import DELIVERED, FORECAST, RANDOM

# Ranks that the picture has room for.
MOST_RANKS = 64
NOT_KNOWN = "not known: only a balanced loop without a balancer sees what all ranks get"


def read_forecast(path: Path) -> dict[str, Any]:
    """Return the forecast in a report.json of `counterpoise analyze`; ValueError for others."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        shares = {name: float(found["waiting"][name]) for name in ("balanced", RANDOM)}
        return {"ranks": int(found["plan"]["ranks"]), **shares}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no forecast ({type(error).__name__}: {error}): give the "
            "report.json that `counterpoise analyze DATA` has written"
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
    found = stats["waiting"]
    if stats["ranks"] == 1:
        return "one, which waits for no other"
    if not found:
        return NOT_KNOWN
    return (
        f"{stats['ranks']} ranks waited {found[DELIVERED]:.1%} of the time for the slowest "
        f"(planned: {found[FORECAST]:.1%}); in random order {found[RANDOM]:.1%}, and steps "
        f"{stats['random_over_delivered']:.2f} times as long; counted by costs"
    )


def _foretold(stats: Mapping[str, Any], forecast: Mapping[str, Any] | None) -> str:
    if forecast is None:
        return ""
    said = f"; analyze foretold {forecast['balanced']:.1%}, in random order {forecast[RANDOM]:.1%}"
    is_other = stats["ranks"] not in (None, forecast["ranks"])
    return said + (f", for {forecast['ranks']} ranks" if is_other else "")


def _samples(stats: Mapping[str, Any]) -> str:
    holes = ", ".join(f"{count:,} {why}" for why, count in stats["holes"].items())
    shares = [f"{share:.1%} of {name}" for name, share in stats["padding_share"].items()]
    return (
        f"{stats['samples']:,} in {stats['steps']:,} steps of this process; left out: "
        f"{holes or 'none'}; padding: {', '.join(shares) or 'not known'}"
    )


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>counterpoise: a loop's report</title>
<style>
:root {{ color-scheme: light dark; --ours: #1d6fb8; --other: #b4581a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ours: #6db3f2; --other: #f0a35e; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto;
  padding: 0 1rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; }} dd {{ margin: 0; }}
dt {{ font-weight: 600; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.bar {{ height: .6rem; margin: 1px 0; background: var(--ours); }}
.other {{ background: var(--other); }} .rank {{ margin-bottom: .4rem; }}
svg {{ width: 100%; height: 12rem; }} polyline {{ fill: none; stroke-width: 2; stroke: var(--ours);
  vector-effect: non-scaling-stroke; }} polyline.line {{ stroke: var(--other); }}
b {{ color: var(--ours); }} i {{ color: var(--other); font-style: normal; font-weight: 600; }}
</style><h1>A loop's report</h1><dl>{facts}</dl>{picture}</html>
"""


def report_page(
    lines: Sequence[str], rank_work: Mapping[str, Any], times: Sequence[Mapping[str, float]]
) -> str:
    """Return the lines as an HTML page; of a loop whose ranks are known, with their picture.

    rank_work: the work of each rank in the last step; times: those of the last steps, both by kind.
    """
    facts = "".join(
        f"<dt>{name}</dt><dd>{html.escape(said)}</dd>"
        for name, said in (line.split(maxsplit=1) for line in lines)
    )
    return _PAGE.format(facts=facts, picture=_picture(rank_work, times) if times else "")


def _picture(rank_work: Mapping[str, Any], times: Sequence[Mapping[str, float]]) -> str:
    both = [rank_work[kind][:MOST_RANKS].tolist() for kind in (DELIVERED, RANDOM)]
    most = max(1, *chain(*both))
    bars = "".join(
        f'<div class="rank"><div class="bar" style="width:{100 * ours / most:.1f}%"></div>'
        f'<div class="bar other" style="width:{100 * other / most:.1f}%"></div></div>'
        for ours, other in zip(*both, strict=True)
    )
    top = max(chain(*(each.values() for each in times)))
    lines = ""
    for kind, name in ((RANDOM, "line"), (DELIVERED, "")):
        places = (f"{k},{100 - 100 * each[kind] / top:.1f}" for k, each in enumerate(times))
        lines += f'<polyline class="{name}" points="{" ".join(places)}"/>'
    return (
        "<p><b>as delivered</b>, and <i>the same samples in random order</i>. Counted from what "
        "the samples cost, not timed.</p>"
        f"<h2>Work of each rank in the last step</h2>{bars}"
        f"<h2>Time of the last {len(times)} steps</h2>"
        f'<svg viewBox="0 0 {max(1, len(times) - 1)} 100" preserveAspectRatio="none">{lines}</svg>'
    )
