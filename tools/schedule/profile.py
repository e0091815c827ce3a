"""`counterpoise profile`: what passes cost, from measured steps."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from ...sched import dump_profile
from ...sched.ir.kinds import kind
from ...sched.render.summary import format_time
from ...sched.simulation.fitting import FittedProfile, fit_profile
from ...sched.simulation.measured import MeasuredStep
from ..console.commands import FILE, Command, json_option
from ..console.reporting import PLAIN, emit, make_table
from ..inputs.cost_options import read_step


@click.command("profile", cls=Command)
@click.argument("steps", nargs=-1, required=True)
@click.option(
    "--skip", type=click.IntRange(min=0), default=2, show_default=True,
    help="Leave out the first steps of a folder: they are slower.",
)  # fmt: skip
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME",
    help="What costs depend on; repeat.  [default: all]",
)  # fmt: skip
@click.option("--out", type=FILE, help="Write the cost profile here.")
@json_option
def command(
    steps: tuple[str, ...], skip: int, resources: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Fit a cost profile to measured steps, and print how well it fits.

    Steps are JSON files (schedules-cli.md), or folders that a job has written which trains a
    Pipeline: with timelines=, or COUNTERPOISE_TIMELINES in its environment.

    Example: counterpoise profile timelines --out profile.json
    """
    fitted = fit_profile(_read(steps, skip), resources=resources or None)
    if out is not None:
        out.write_text(dump_profile(fitted.profile) + "\n", "utf-8")
        click.echo(f"wrote {out}", err=True)
    emit(_report(fitted), as_json, _table(fitted))


def _read(places: Sequence[str], skip: int) -> list[MeasuredStep]:
    """Return the steps of files and folders, of a folder without the first."""
    paths: list[Path] = []
    for place in map(Path, places):
        steps = (path for path in place.glob("step-*.json") if path.stem[5:].isdecimal())
        in_order = sorted(steps, key=lambda path: int(path.stem[5:]))
        paths += in_order[skip:] if place.is_dir() else [place]
    if not paths:
        raise ValueError(f"{', '.join(places)} has no more steps than --skip {skip} leaves out")
    return [read_step(path) for path in paths]


def _report(fitted: FittedProfile) -> dict[str, object]:
    return {
        "placement": list(fitted.profile.placement),
        "residuals": {
            name: [asdict(residual) for residual in rows] for name, rows in fitted.residuals.items()
        },
    }


def _table(fitted: FittedProfile) -> Table:
    columns = ("stage", "samples", "mean", "fixed", "per 1000", "rms error", "worst")
    table = make_table(None, "pass", *columns, **PLAIN)
    for name, rows in fitted.residuals.items():
        entries = zip(fitted.profile.passes[name], rows, strict=True)
        where = "rank " if kind(name).scope == "rank" else ""
        for row, (cost, residual) in enumerate(entries):
            slopes = ", ".join(f"{r} {format_time(ns)}" for r, ns in cost.per_thousand.items())
            table.add_row(
                name, f"{where}{row}", str(residual.samples), format_time(round(residual.mean)),
                format_time(cost.fixed), slopes or "-", f"{100 * residual.rms:.1f} %",
                f"{100 * residual.worst:.1f} %",
            )  # fmt: skip
    return table
