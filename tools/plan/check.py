"""`counterpoise plan check`: a running job beside its plan."""

from pathlib import Path

import click

from ...sched.planners.job.drift import Drift, compare
from ...sched.planners.job.schema import read_job
from ...sched.simulation.cost_profile import load_profile
from ...sched.simulation.measured import load_step
from ..console.reporting import emit, make_table
from ..inputs.files import parse_text


@click.command("check")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--measured", type=click.Path(path_type=Path), required=True,
    help="A cost profile (`counterpoise profile`), or a step's timeline.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def check_command(plan: Path, measured: Path, as_json: bool) -> None:
    """Say which assumption of a job's plan was off, and what that does to the step.

    Example: counterpoise plan check job.json --measured run.json
    """
    text = measured.read_text("utf-8") if measured.is_file() else ""
    is_profile = '"passes"' in text
    found = parse_text(measured, load_profile) if is_profile else parse_text(measured, load_step)
    drift = compare(read_job(plan), found)
    report = {
        "planned_s": drift.planned_ns / 1e9,
        "simulated_s": drift.simulated_ns / 1e9,
        "measured_s": None if drift.measured_ns is None else drift.measured_ns / 1e9,
        "deviations": [
            {
                "what": one.what,
                "assumed_ms": one.assumed_ns / 1e6,
                "measured_ms": one.measured_ns / 1e6,
                "change": one.change,
                "step_change": one.step_change,
            }
            for one in drift.deviations
        ],
    }
    table = make_table(_title(drift), "assumption", "planned, ms", "measured, ms", "off", "step")
    for one in drift.deviations:
        figures = (f"{ns / 1e6:.2f}" for ns in (one.assumed_ns, one.measured_ns))
        shares = (f"{100 * share:+.1f} %" for share in (one.change, one.step_change))
        table.add_row(one.what, *figures, *shares)
    emit(report, as_json, table)


def _title(drift: Drift) -> str:
    """Return the steps, and what no pass accounts for."""
    found = (
        f"planned {drift.planned_ns / 1e9:.3f} s, with what was measured "
        f"{drift.simulated_ns / 1e9:.3f} s"
    )
    if drift.measured_ns is None:
        return found
    rest = drift.measured_ns / drift.simulated_ns - 1
    return f"{found}, measured {drift.measured_ns / 1e9:.3f} s ({100 * rest:+.1f} % in no pass)"
