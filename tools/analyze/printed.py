"""Makes the tables of an analysis that the terminal shows."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ..console.reporting import make_table
from .model.strategies import STRATEGIES
from .page.bars import UNKNOWN, percent
from .page.document import headline

Json = dict[str, Any]
BALANCE = "balance.json"


def report_tables(report: Json, out: Path) -> Iterator[Table]:
    """Yield the tables of a report whose files are in `out`, the settings to paste last."""
    yield _strategies(report)
    waits = {
        name if name == "random" else f'waits="{name}"': (found["microbatch"], found["step"])
        for name, found in report["waits"].items()
    }
    yield _shares(
        "waiting, by when your loop's ranks wait for each other",
        ("plan", "every microbatch (FSDP)", "once a step (DDP with no_sync)"), waits,
    )  # fmt: skip
    if found := report["dispatch"]:
        yield _dispatch(found)
    if found := report["shapes"]:
        yield _shares(
            "padding of tokens in packed microbatches, and work over time, by shapes",
            ("balanced", "padding", "efficiency"),
            {n or "as it is": (one["padding"], one["efficiency"]) for n, one in found.items()},
        )
    yield _settings(report, out)


def _shares(title: str, columns: tuple[str, ...], rows: Mapping[str, Iterable[float]]) -> Table:
    """Return a table of shares by name; columns: the names', then the shares'."""
    table = make_table(title, *columns)
    for name, shares in rows.items():
        table.add_row(name, *map(percent, shares))
    return table


def _dispatch(found: Json) -> Table:
    figures = ("encoder", "llm", "waiting", "time")
    return _shares(
        "waiting, if whole samples are balanced, and if images travel",
        ("balanced", "encoder", "language model", "both", "time"),
        {f'dispatch="{name}"': [one[each] for each in figures] for name, one in found.items()},
    )


def _strategies(report: Json) -> Table:
    found = report["strategies"]
    caption = "waiting: share of the strategy's own step; time: of a sample, relative to random;\n"
    caption += "padding: if every microbatch is padded to its longest sample"
    if any(one["other_size"] for one in found.values()):
        asked = report["plan"]["samples_per_step"]
        caption += f"\n* steps of another size than the {asked:,} samples asked for: not comparable"
    resources = report["budgets"]["resources"]
    ratios = [f"DistRatio\n{name}" for name in resources]
    columns = ("strategy", "waiting", "samples\na step", "time", *ratios, "padding")
    table = make_table(headline(report), *columns, caption=caption, title_justify="left")
    whole = found["random"]["time_per_sample"]
    for name in STRATEGIES:
        one = found[name]
        half = f" ± {100 * one['interval']:.1f}" if one["interval"] < UNKNOWN else ""
        table.add_row(
            name,
            f"{100 * one['waiting']:.1f}{half} %",
            f"{one['samples_per_step']:,.0f}{' *' if one['other_size'] else ''}",
            percent(one["time_per_sample"] / whole if whole else 1, 0),
            *(percent(one["dist_ratio"][each]) for each in resources),
            percent(one["padding"]),
        )
    return table


def _settings(report: Json, out: Path) -> Table:
    """Return the settings to paste and the path of the page."""
    table = Table(box=None, show_header=False, pad_edge=False)
    advice = "Settings if you balance anyway:" if report["leave_off"] else "Settings to paste:"
    table.add_row(Text(advice, style="bold"))
    table.add_row(Text(report["recommended"]["settings"].rstrip()))
    table.add_row(Text(f"\nThe same for Balance.load: {out / BALANCE}", style="dim"))
    table.add_row(Text(f"The page: {out / 'report.html'}", style="dim"))
    return table
