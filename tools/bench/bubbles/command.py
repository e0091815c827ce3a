"""`counterpoise bench bubbles`: Optimus' tables in simulation, and what ours adds to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ....sched.bubble_filling.plan.choose import fill_plan
from ...console.reporting import emit, progress_console
from .chart import chart_svg
from .jitter import jitter_report
from .sensitivity import Point, sensitivity
from .settings import PAPER, SETTINGS, setting_report, small_problem, table_report
from .uneven import uneven_report

# Figures 15 and 16 give no numbers; the text says "up to".
TABLE_3: dict[str, object] = {"megatron_up_to": 1.22, "balanced_up_to": 1.18}
TABLE_6: dict[str, object] = {"megatron": {"11+5": 1.25, "22+5": 1.26, "22+11": 1.27}}


@click.command(
    "bubbles",
    epilog="Example: counterpoise bench bubbles --json",
)
@click.option("--setting", "settings", multiple=True, type=click.Choice(SETTINGS), help="Repeat.")
@click.option(
    "--sensitivity", "sweep", is_flag=True, help="Only: what the hidden share depends on."
)
@click.option("--uneven", is_flag=True, help="Only: microbatches of different encoder cost.")
@click.option("--costs", type=click.Path(path_type=Path), help="For --uneven: npz with tiles.")
@click.option("--out", type=click.Path(path_type=Path), help="For --sensitivity: an SVG here.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    settings: tuple[str, ...], sweep: bool, uneven: bool, costs: Path | None, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Fill the language model's bubbles with encoder work, in simulation (set R)."""
    _compile()
    if uneven:
        report = uneven_report(costs)
        emit(report, as_json, _uneven_table(report))
    elif sweep:
        points, jitter = sensitivity(), jitter_report()
        if out is not None:
            out.write_text(chart_svg(points, jitter), "utf-8")
            progress_console.print(f"wrote {out}")
        report = {name: [one.report() for one in row] for name, row in points.items()}
        tables = [_sweep_table(name, row) for name, row in points.items()]
        emit(report | {"jitter": jitter}, as_json, *tables, _jitter_table(jitter))
    else:
        report = bench(settings or SETTINGS)
        emit(report, as_json, *_tables(report))


def bench(settings: tuple[str, ...]) -> dict[str, Any]:
    """The whole report."""
    report: dict[str, Any] = {}
    for name in settings:
        progress_console.print(f"setting {name}")
        report[name] = setting_report(name)
    progress_console.print("tables 3 and 6")
    report["table3"] = table_report(("A", "B", "C", "D"), TABLE_3)
    report["table6"] = table_report(("11+5", "22+5", "22+11"), TABLE_6)
    progress_console.print("jitter")
    report["jitter"] = jitter_report()
    return report


def _compile() -> None:
    """Compile the filling loop before anything is measured."""
    progress_console.print("compiling, or loading what was compiled before")
    fill_plan(small_problem())


def _tables(report: Mapping[str, Any]) -> list[Table]:
    return [
        _settings_table(report),
        _cases_table("Table 3 (weak scaling)", report["table3"]),
        _cases_table("Table 6 (two encoders)", report["table6"]),
        _jitter_table(report["jitter"]),
    ]


def _settings_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="Set R, PP_enc 2, TP_enc 8 (the paper's figures in brackets)")
    names = [name for name in SETTINGS if name in report]
    table.add_column("GPUs")
    for name in names:
        table.add_column(name, justify="right")
    rows = {key: [report[name][key] for name in names] for key in report[names[0]]}
    paper = [PAPER[name] for name in names]

    def shares(key: str, at: int | None) -> list[str]:
        told = [f" ({one[at]})" if at is not None else "" for one in paper]
        return [f"{100 * v:.1f} %{p}" for v, p in zip(rows[key], told, strict=True)]

    table.add_row("hidden, coarse", *shares("eff_coarse", 0))
    table.add_row("hidden, whole kernels", *shares("eff_fine", 1))
    table.add_row("hidden, split kernels", *shares("eff_split", None))
    table.add_row("upper bound", *shares("upper_bound", None))
    for key, at in (("balanced", 3), ("whole", 4), ("split", None), ("llm_only", None)):
        told = [f" ({one[at]})" if at is not None else "" for one in paper]
        steps = [f"{one[key]:.2f} s{p}" for one, p in zip(rows["step_seconds"], told, strict=True)]
        table.add_row(f"step, {key}", *steps)
    for key in ("whole", "split"):
        ratios = [one["balanced"] / one[key] for one in rows["step_seconds"]]
        told = [f"{r:.3f} ({one[5]})" for r, one in zip(ratios, paper, strict=True)]
        table.add_row(f"speed-up over balanced, {key}", *told)
    took = [f"{v:.2f} s ({one[2]})" for v, one in zip(rows["seconds"], paper, strict=True)]
    table.add_row("planning, all plans of TP 8", *took)
    table.add_row("planning, whole scan", *(f"{v:.2f} s" for v in rows["planner_seconds"]))
    table.add_row("best plan", *(_plan_words(one) for one in rows["best_plan"]))
    whole = [one["whole_kernels"] for one in rows["best_plan"]]
    table.add_row("best plan of whole kernels", *(_plan_words(one) for one in whole))
    return table


def _plan_words(plan: Mapping[str, Any]) -> str:
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


def _jitter_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="Kernels of other times: step over the language model's own, in %")
    for name in ("cv", "drift offline", "guarded", "re-planned", "jitter offline", "guarded"):
        table.add_column(name, justify="right")
    for cv, drift in report["drift"].items():
        values = [*drift.values(), *report["jitter"][cv].values()]
        table.add_row(cv, *(f"{100 * value:.2f}" for value in values))
    table.caption = f"re-planning takes back {100 * report['recovered_at_0.1']:.0f} % at cv 0.1"
    return table


def _sweep_table(name: str, row: list[Point]) -> Table:
    table = Table(title=f"Hidden share by {name}")
    for column in (name, "whole kernels", "split kernels", "upper bound", "step / LLM-only"):
        table.add_column(column, justify="right")
    for one in row:
        shares = (f"{100 * value:.1f} %" for value in (one.whole, one.split, one.bound))
        table.add_row(f"{one.x:.3g}", *shares, f"{one.step:.3f}")
    return table


def _uneven_table(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"Unequal microbatches, {report['costs']}: step over LLM-only, in %")
    for name in ("kernels", "microbatches", "cost cv", "mean plan", "knowing plan", "gain"):
        table.add_column(name, justify="right")
    for kernels in ("whole", "split"):
        for way, row in report[kernels].items():
            steps = (f"{100 * row[key]:.2f}" for key in ("mean_plan", "knowing_plan"))
            table.add_row(kernels, way, f"{row['cost_cv']:.2f}", *steps, f"{row['gain']:.3f}")
    return table
