"""What a loop's figures say to somebody who does not know our terms: three lines, and a picture."""

import html
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from math import ceil, log2
from pathlib import Path
from typing import Any

from .families import DELIVERED, FORECAST, RANDOM

# Ranks that the picture has room for.
MOST_RANKS = 64
NOT_KNOWN = "not known: only a balanced loop without a balancer sees what all ranks get"


def read_forecast(path: Path) -> dict[str, Any]:
    """Return the forecast in a report of `counterpoise analyze` or `try`; ValueError for others."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        shares = {name: float(found["forecast"][name]) for name in ("waiting", "waited")}
        return {"ranks": int(found["settings"]["ranks"]), **shares}
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
    said = f"; foretold {forecast['waiting']:.1%}, in random order {forecast['waited']:.1%}"
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
.chart {{ display: grid; grid-template-columns: max-content 1fr; column-gap: .6rem;
  padding-right: 1rem; font-size: .8rem; text-align: right; }}
.chart > * {{ grid-column: 2; }} .unit {{ text-align: center; }}
.rank {{ padding: .1rem 0; border-right: 1px solid #8888; background:
  linear-gradient(90deg, #8888 1px, transparent 1px) 0 0 / calc(100% / var(--parts)); }}
.bar {{ height: .5rem; background: var(--ours); }} .other {{ background: var(--other); }}
svg {{ width: 100%; height: 12rem; border: 0 solid #8888; border-width: 0 0 1px 1px; background:
  linear-gradient(#8888 1px, transparent 1px) 0 0 / 100% calc(100% / var(--parts)); }}
polyline {{ fill: none; stroke-width: 2; stroke: var(--ours); vector-effect: non-scaling-stroke; }}
.ticks {{ display: flex; justify-content: space-between; }}
.ticks span {{ width: 0; display: flex; justify-content: center; }}
.ticks.up {{ grid-column: 1; flex-direction: column-reverse; line-height: 0; }}
.ticks.up span {{ width: auto; justify-content: right; }} .line {{ stroke: var(--other); }}
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
    """Return bars of each rank's work and lines of the steps' times; 1 is a rank's mean work."""
    mean = rank_work[DELIVERED].mean() or 1.0
    work = [(rank_work[kind][:MOST_RANKS] / mean).tolist() for kind in (DELIVERED, RANDOM)]
    ticks = _ticks(max(chain(*work)))
    bars = "".join(
        f'rank {rank}<div class="rank"><div class="bar" style="width:{ours / ticks[-1]:.1%}"></div>'
        f'<div class="bar other" style="width:{other / ticks[-1]:.1%}"></div></div>'
        for rank, (ours, other) in enumerate(zip(*work, strict=True))
    )
    time_ticks = _ticks(max(chain(*(each.values() for each in times))))
    lines = ""
    for kind, name in ((RANDOM, "line"), (DELIVERED, "")):
        heights = [100 - 100 * each[kind] / time_ticks[-1] for each in times]
        # the last is drawn until the axis ends, so that one step alone is a line too
        places = (f"{k},{height:.1f}" for k, height in enumerate([*heights, heights[-1]]))
        lines += f'<polyline class="{name}" points="{" ".join(places)}"/>'
    count = len(times)
    return (
        "<p><b>as delivered</b>, and <i>the same samples in random order</i>. Counted from what "
        "the samples cost, not timed.</p>"
        "<h2>Work of each rank in the last step</h2>"
        f'<div class="chart" style="--parts:{len(ticks) - 1}">{bars}{_labels(ticks)}'
        '<div class="unit">work; 1 is the mean of the ranks</div></div>'
        "<h2>Time of the last steps, until their slowest rank is done</h2>"
        f'<div class="chart" style="--parts:{len(time_ticks) - 1}">{_labels(time_ticks, "up")}'
        f'<svg viewBox="0 0 {count} 100" preserveAspectRatio="none">{lines}</svg>'
        f"{_labels((count, 0) if count % 2 else (count, count // 2, 0))}"
        '<div class="unit">steps ago; upward: time, 1 is the mean work of a rank</div></div>'
    )


def _ticks(most: float) -> list[float]:
    """Return even values from 0 to `most` or just above, 6 at most."""
    apart = 0.5 * 2 ** max(0, ceil(log2(max(most, 0.5) / 2.5)))
    return [apart * k for k in range(ceil(max(most, 0.5) / apart) + 1)]


def _labels(ticks: Sequence[float], way: str = "") -> str:
    """Return the labels of an axis, evenly spaced; way: "up" for a vertical one."""
    return f'<div class="ticks {way}">{"".join(f"<span>{x:g}</span>" for x in ticks)}</div>'
