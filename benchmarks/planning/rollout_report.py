"""The tables of `make bench NAME=rollouts`, and the bars that its figures are held against."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from counterpoise.tools.console.reporting import make_table

Row = Mapping[str, Any]
# cell and counts; the most of our CPU time over verl's in the same run
TIME_BARS = (
    ("4,096 x 64", "equal", 1.5),
    ("262,144 x 1,024", "equal", 1.5),
    ("512 x 512", "equal", 3.0),
    ("4,096 x 64", "free", 1 / 50),
)
# how far ours may be above verl's: the slowest rank's work, and what is waited for
WORK_BAR, WAITED_BAR = 1.001, 1.005
FREE_OVER_EQUAL = ("262,144 x 1,024", 1.5)


def judge(report: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return each bar, the worst figure of all cells that have it, and whether it is kept.

    A figure is None, and kept too, where no cell of the run has it.
    """
    deals, cuts = report["deals"], report["microbatches"]
    bars: list[tuple[str, list[tuple[float, str]], float]] = [
        ("slowest rank's work over verl's", list(_ratios(deals, "max_over_mean")), WORK_BAR),
        ("work waited for over verl's", list(_ratios(cuts, "waited_over_mean")), WAITED_BAR),
        ("rollouts of ours missing or twice", list(_uncovered([*deals, *cuts])), 0),
        ("microbatches of ours over the budget", list(_ours(cuts, "over_budget")), 0),
    ]
    for cell, counts, most in TIME_BARS:
        rows = [row for row in deals if row["cell"] == cell and row["counts"] == counts]
        times = [
            (figures["cpu_over_verl"]["median"], label)
            for label, _, figures in _our_figures(rows)
            if "cpu_over_verl" in figures
        ]
        bars.append((f"CPU time over verl's, {cell}, {counts}", times, most))
    cell, most = FREE_OVER_EQUAL
    bars.append(
        (f"CPU time of free over equal counts, {cell}", _free_over_equal(deals, cell), most)
    )
    return [
        {
            "bar": name, "most": most, "worst": max(figures)[0] if figures else None,
            "cell": max(figures)[1] if figures else None, "cells": len(figures),
            "above": [label for figure, label in figures if figure > most],
        }
        for name, figures, most in bars
    ]  # fmt: skip


def _our_figures(rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """Yield a label, the row and the figures of ours, wherever ours gave an answer."""
    for row in rows:
        for name, figures in row["contenders"].items():
            if name.startswith("ours") and "error" not in figures:
                counts = row.get("counts") or name.removeprefix("ours, ")
                yield f"{row['lengths']} {row['cell']} {counts}", row, figures


def _ratios(rows: Sequence[Row], name: str) -> Iterator[tuple[float, str]]:
    for label, row, figures in _our_figures(rows):
        verl = row["contenders"]["verl"]
        if "error" not in verl:
            yield figures[name] / verl[name], label


def _ours(rows: Sequence[Row], name: str) -> Iterator[tuple[float, str]]:
    return ((figures[name], label) for label, _, figures in _our_figures(rows))


def _uncovered(rows: Sequence[Row]) -> Iterator[tuple[float, str]]:
    for label, _, figures in _our_figures(rows):
        yield figures["missing"] + figures["twice"], label


def _free_over_equal(rows: Sequence[Row], cell: str) -> list[tuple[float, str]]:
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["cell"] == cell and "cpu_ms" in row["contenders"]["ours"]:
            of_lengths = times.setdefault(row["lengths"], {})
            of_lengths[row["counts"]] = row["contenders"]["ours"]["cpu_ms"]
    return [
        (of["free"] / of["equal"], f"{lengths} {cell}")
        for lengths, of in times.items()
        if len(of) == 2
    ]


def as_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the report as tables: ranks, microbatches, errors, and the bars."""
    verl = f"verl {report['verl']}" if report["verl"] else "verl not called: give --verl PYTHON"
    deals = make_table(f"Slowest rank's work over the mean; {verl}", *DEAL_COLUMNS)
    for row in report["deals"]:
        deals.add_row(*_deal_texts(row))
    cuts = make_table(f"Work waited for over the mean, within budgets; {verl}", *CUT_COLUMNS)
    for row in report["microbatches"]:
        cuts.add_row(*_cut_texts(row))
    errors = make_table("Errors", "contender", "says", "cells")
    for (name, error), labels in _errors(report).items():
        errors.add_row(name, error, "; ".join(labels))
    bars = make_table("Bars", "figure", "worst", "most", "cells", "where")
    for bar in report["bars"]:
        worst = "no cell" if bar["worst"] is None else f"{bar['worst']:.5g}"
        where = f"ABOVE in {'; '.join(bar['above'])}" if bar["above"] else bar["cell"] or ""
        bars.add_row(bar["bar"], worst, f"{bar['most']:.4g}", str(bar["cells"]), where)
    return [table for table in (deals, cuts, errors, bars) if table.row_count]


DEAL_COLUMNS = (
    "rollouts x ranks", "counts", "ours", "over bound", "counts of ranks", "verl", "OpenRLHF",
    "TRL", "CPU ms: ours", "verl", "ours / verl",
)  # fmt: skip
CUT_COLUMNS = (
    "rollouts x ranks, budget", "ours, equal", "ours, free", "verl", "OpenRLHF", "TRL",
    "microbatches: equal", "free", "verl", "verl's ranks alone", "CPU ms: equal", "free", "verl",
)  # fmt: skip


def _deal_texts(row: Row) -> list[str]:
    who = row["contenders"]
    bound = who["ours"].get("max_over_bound")
    ratio = who["ours"].get("cpu_over_verl")
    return [
        f"{row['lengths']} {row['cell']}", row["counts"], _even(who, "ours", "max_over_mean"),
        "" if bound is None else f"{bound:.5f}", _range(who["ours"].get("counts")),
        *(_even(who, name, "max_over_mean") for name in ("verl", "openrlhf", "trl")),
        _ms(who, "ours"), _ms(who, "verl"), "" if ratio is None else f"{ratio['median']:.3f}",
    ]  # fmt: skip


def _cut_texts(row: Row) -> list[str]:
    who = row["contenders"]
    names = ("ours, equal", "ours, free", "verl")
    return [
        f"{row['lengths']} {row['cell']}",
        *(_even(who, name, "waited_over_mean") for name in (*names, "openrlhf", "trl")),
        *(_range(who[name].get("microbatches")) for name in names),
        _range(row["verl_alone"]), *(_ms(who, name) for name in names),
    ]  # fmt: skip


def _even(who: Row, name: str, key: str) -> str:
    """Return a contender's figure, with what it left out and what is over the budget."""
    figures = who.get(name, {})
    if key not in figures:
        return "error" if "error" in figures else ""
    texts = [f"{figures[key]:.5f}"]
    texts += [f"{figures['missing']:,} missing"] if figures["missing"] else []
    texts += [f"{figures['over_budget']:,} over"] if figures.get("over_budget") else []
    return ", ".join(texts)


def _ms(who: Row, name: str) -> str:
    taken = who.get(name, {}).get("cpu_ms")
    return "" if taken is None else f"{taken:,.1f}"


def _range(ends: Sequence[int] | None) -> str:
    if not ends:
        return ""
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"


def _errors(report: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return which cells each error of each contender is of."""
    errors: dict[tuple[str, str], list[str]] = {}
    for row in (*report["deals"], *report["microbatches"]):
        label = " ".join(filter(None, [row["lengths"], row["cell"], row.get("counts")]))
        for name, figures in row["contenders"].items():
            if "error" in figures:
                errors.setdefault((name, figures["error"]), []).append(label)
    return errors
