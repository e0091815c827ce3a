"""`counterpoise profile`: what passes cost, from measured steps."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from ...sched import dump_profile
from ...sched.ir.kinds import kind
from ...sched.render.summary import format_time
from ...sched.simulation.fitting import FittedProfile, fit_profile
from ..console.reporting import emit
from ..inputs.timelines import read_step


@click.command("profile")
@click.argument("steps", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    steps: tuple[Path, ...],
    resources: str | None,
    form: Literal["affine", "linear"],
    p2p_ns: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit a cost profile to measured steps, and print how well it fits.

    A step is a JSON file with the times of all passes and what each microbatch held
    (docs/schedules-cli.md). Leave out a job's first steps: they are slower.

    Example: counterpoise profile step-12.json step-13.json --out profile.json
    """
    names = None if resources is None else [name for name in resources.split(",") if name]
    fitted = fit_profile([read_step(p) for p in steps], resources=names, form=form, p2p_ns=p2p_ns)
    if out is not None:
        out.write_text(dump_profile(fitted.profile) + "\n", "utf-8")
        click.echo(f"wrote {out}", err=True)
    emit(_report(fitted), as_json, _table(fitted))


def _report(fitted: FittedProfile) -> dict[str, object]:
    return {
        "placement": list(fitted.profile.placement),
        "residuals": {
            name: [asdict(one) for one in rows] for name, rows in fitted.residuals.items()
        },
    }


def _table(fitted: FittedProfile) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("pass")
    for name in ("stage", "samples", "mean", "fixed", "per 1000", "rms error", "worst"):
        table.add_column(name, justify="right")
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
