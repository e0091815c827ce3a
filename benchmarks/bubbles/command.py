"""`make bench NAME=bubbles`: simulates Optimus' tables with our bubble filling beside."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from rich.table import Column, Table

from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.tools.console.reporting import emit, progress_console

from .chart import chart_svg
from .published import published_report, rows_of
from .sensitivity import Point, sensitivity
from .settings import PAPER, SETTINGS, setting_report, small_problem, table_report

# Figures 15 and 16 give no numbers; the text says "up to".
TABLE_3: dict[str, object] = {"megatron_up_to": 1.22, "balanced_up_to": 1.18}
TABLE_6: dict[str, object] = {"megatron": {"11+5": 1.25, "22+5": 1.26, "22+11": 1.27}}

# Rows of the table of settings: (title, key of the report, field of PaperFigures) and (key, field).
_SHARES = (
    ("coarse", "eff_coarse", "coarse"),
    ("whole kernels", "eff_fine", "fine"),
    ("split kernels", "eff_split", None),
)
_STEPS = (("balanced", "balanced_s"), ("whole", "optimus_s"), ("split", None), ("llm_only", None))


@click.command(
    "bubbles",
    epilog="Example: make bench NAME=bubbles ARGS='--json'",
)
@click.option("--setting", "settings", multiple=True, type=click.Choice(SETTINGS), help="Repeat.")
@click.option(
    "--sensitivity", "sweep", is_flag=True, help="Only: what the hidden share depends on."
)
@click.option("--out", type=click.Path(path_type=Path), help="For --sensitivity: an SVG here.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(settings: tuple[str, ...], sweep: bool, out: Path | None, as_json: bool) -> None:
    """Fill the language model's bubbles with encoder work, in simulation (set R)."""
    fill_bubbles(small_problem())  # what is imported at the first call is not measured
    if sweep:
        points = sensitivity()
        if out is not None:
            out.write_text(chart_svg(points), "utf-8")
            progress_console.print(f"wrote {out}")
        report = {name: [one.report() for one in row] for name, row in points.items()}
        tables = [_sweep_table(name, row) for name, row in points.items()]
        emit(report, as_json, *tables)
    else:
        report = bench(settings or SETTINGS)
        emit(report, as_json, *_tables(report))


def bench(settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of the settings, and of Tables 3 and 6."""
    report: dict[str, Any] = {}
    for name in settings:
        progress_console.print(f"setting {name}")
        report[name] = setting_report(name)
    progress_console.print("tables 3 and 6")
    report["table3"] = table_report(("A", "B", "C", "D"), TABLE_3)
    report["table6"] = table_report(("11+5", "22+5", "22+11"), TABLE_6)
    progress_console.print("headlines, with collectives and a memory limit")
    report["published"] = published_report()
    return report


def _tables(report: Mapping[str, Any]) -> list[Table]:
    return [
        _settings_table(report),
        _cases_table("Table 3 (weak scaling)", report["table3"]),
        _cases_table("Table 6 (two encoders)", report["table6"]),
        _published_table(report["published"]),
    ]


def _settings_table(report: Mapping[str, Any]) -> Table:
    """Return a table with a column for each setting, and the paper's figures in brackets."""
    names = [name for name in SETTINGS if name in report]
    settings = [report[name] for name in names]
    columns = (Column(name, justify="right") for name in names)
    title = "Set R, PP_enc 2, TP_enc 8 (the paper's figures in brackets)"
    table = Table("GPUs", *columns, title=title)

    # A row's cells are followed by the published figure, where the paper has one.
    def add(title: str, cells: Iterable[str], figure: str | None = None) -> None:
        published = [f" ({getattr(PAPER[name], figure)})" if figure else "" for name in names]
        table.add_row(title, *(map("".join, zip(cells, published, strict=True))))

    for title, key, figure in _SHARES:
        add(f"hidden, {title}", (f"{100 * one[key]:.1f} %" for one in settings), figure)
    steps = [one["step_seconds"] for one in settings]
    for key, figure in _STEPS:
        add(f"step, {key}", (f"{step[key]:.2f} s" for step in steps), figure)
    for key in ("whole", "split"):
        ratios = (f"{step['balanced'] / step[key]:.3f}" for step in steps)
        add(f"speed-up over balanced, {key}", ratios, "speedup")
    add(
        "planning, all plans of TP 8", (f"{one['seconds']:.2f} s" for one in settings), "planning_s"
    )
    add("planning, whole scan", (f"{one['planner_seconds']:.2f} s" for one in settings))
    best = [one["best_plan"] for one in settings]
    add("best plan", map(_plan_words, best))
    whole = map(itemgetter("whole_kernels"), best)
    add("best plan of whole kernels", map(_plan_words, whole))
    return table


def _plan_words(plan: Mapping[str, Any]) -> str:
    """Return a plan in words, such as "PP 2, TP 8, whole: 4.87 s, 85.0 %"."""
    cut = f", {plan['longest_piece_us']:.0f} us" if plan["longest_piece_us"] else ", whole"
    return (
        f"PP {plan['pp_enc']}, TP {plan['tp_enc']}{cut}: {plan['step_seconds']:.2f} s, "
        f"{100 * plan['eff']:.1f} %"
    )


def _cases_table(title: str, report: Mapping[str, Any]) -> Table:
    rows = report["rows"]
    columns = [key for key in next(iter(rows.values())) if key != "step_seconds"]
    table = Table(title=f"{title}; the paper: {report['paper']}")
    for name in ("case", *(column.replace("_vs_", " / ") for column in columns), "step"):
        table.add_column(name, justify="right")
    table.caption = f"guessed: {report['guessed']}"
    for name, row in rows.items():
        ratios = [f"{row[column]:.2f}" for column in columns]
        table.add_row(name, *ratios, f"{row['step_seconds']:.2f} s")
    return table


def _published_table(report: Mapping[str, Any]) -> Table:
    title = "Headlines: encoders' collectives counted, copies of at most 12 % of model states"
    table = Table("table", "", "ours", "paper", "ratio", "cause of a difference", title=title)
    for row in rows_of(report):
        table.add_row(*row)
    return table


def _sweep_table(name: str, row: list[Point]) -> Table:
    table = Table(title=f"Hidden share by {name}")
    for column in (name, "whole kernels", "split kernels", "step / LLM-only"):
        table.add_column(column, justify="right")
    for one in row:
        shares = (f"{100 * value:.1f} %" for value in (one.whole, one.split))
        table.add_row(f"{one.x:.3g}", *shares, f"{one.step:.3f}")
    return table
