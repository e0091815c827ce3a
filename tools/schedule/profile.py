"""`counterpoise profile`: what passes cost, from measured steps."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from ...sched import dump_profile
from ...sched.ir.kinds import kind
from ...sched.render.summary import format_time
from ...sched.simulation.fitting import FittedProfile, fit_profile
from ...sched.simulation.measured import MeasuredStep
from ..console.reporting import PLAIN, emit, make_table
from ..inputs.cost_options import read_step


@click.command("profile")
@click.argument("steps", nargs=-1, required=True)
@click.option(
    "--run",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the command that follows --, until N steps are measured.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Leave out the first steps of a run, or of a folder: they are slower.",
)
@click.option("--resources", metavar="NAME,...", help="What costs depend on.  [default: all]")
@click.option(
    "--form",
    type=click.Choice(["affine", "linear"]),
    default="affine",
    show_default=True,
    help="With a fixed cost for each pass, or in proportion to what microbatches hold.",
)
@click.option("--p2p-ns", type=click.IntRange(min=0), default=0, help="Time of a message.  [0]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the cost profile here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    steps: tuple[str, ...],
    run: int | None,
    skip: int,
    resources: str | None,
    form: Literal["affine", "linear"],
    p2p_ns: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit a cost profile to measured steps, and print how well it fits.

    With --run the steps are those of a job that trains a counterpoise Pipeline: it is started, and
    ended after N steps. Without, they are JSON files (schedules-cli.md), or folders that a
    Pipeline has written (timelines=).

    Example: counterpoise profile --run 12 --out profile.json -- torchrun train.py
    """
    names = None if resources is None else [name for name in resources.split(",") if name]
    measured = _read(steps, skip) if run is None else _measure(steps, run, skip)
    fitted = fit_profile(measured, resources=names, form=form, p2p_ns=p2p_ns)
    if out is not None:
        out.write_text(dump_profile(fitted.profile) + "\n", "utf-8")
        click.echo(f"wrote {out}", err=True)
    emit(_report(fitted), as_json, _table(fitted))


def _measure(command: Sequence[str], run: int, skip: int) -> list[MeasuredStep]:
    """Run a command, and return the steps that it has measured, without the first."""
    if run <= skip:
        raise ValueError(f"--run {run} with --skip {skip} leaves no step; run more steps")
    with tempfile.TemporaryDirectory() as folder:
        return [read_step(path) for path in run_until_measured(command, Path(folder), run)[skip:]]


def _read(places: Sequence[str], skip: int) -> list[MeasuredStep]:
    """Return the steps of files and folders, of a folder without the first."""
    found: list[Path] = []
    for place in map(Path, places):
        found += measured_steps(place)[skip:] if place.is_dir() else [place]
    if not found:
        raise ValueError(f"{', '.join(places)} has no more steps than --skip {skip} leaves out")
    return [read_step(path) for path in found]


def _report(fitted: FittedProfile) -> dict[str, object]:
    return {
        "placement": list(fitted.profile.placement),
        "residuals": {
            name: [asdict(one) for one in rows] for name, rows in fitted.residuals.items()
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
                name,
                f"{where}{row}",
                str(residual.samples),
                format_time(round(residual.mean)),
                format_time(cost.fixed),
                slopes or "-",
                f"{100 * residual.rms:.1f} %",
                f"{100 * residual.worst:.1f} %",
            )
    return table


# What a Pipeline reads: the folder for its steps (sched/runtime/execution/drive.py).
VARIABLE = "COUNTERPOISE_TIMELINES"
# A command that was asked to end has this long, seconds.
_GRACE_S = 30.0
_POLL_S = 0.1


def run_until_measured(command: Sequence[str], folder: Path, steps: int) -> list[Path]:
    """Run a command until it has measured `steps` steps, end it, and return their files in order.

    The command's own output goes where ours goes. Raises ValueError if it ends before, with what it
    ended with, and OSError if it cannot be started.
    """
    environment = {**os.environ, VARIABLE: str(folder)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        while len(found := measured_steps(folder)) < steps:
            if process.poll() is not None:
                found = measured_steps(folder)
                break
            time.sleep(_POLL_S)
    finally:
        _end(process)
    if len(found) < steps:
        raise ValueError(
            f"{command[0]} ended with status {process.returncode} after {len(found)} measured "
            f"steps of {steps}; run a job that trains a counterpoise Pipeline for so many steps"
        )
    return found[:steps]


def measured_steps(folder: Path) -> list[Path]:
    """Return the files of a folder's measured steps, by number."""
    found = (path for path in folder.glob("step-*.json") if path.stem[5:].isdecimal())
    return sorted(found, key=lambda path: int(path.stem[5:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command and its children to end, and end them if they do not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
