"""`counterpoise doctor`: what is wrong with an installation, or with a running job."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from .doctor_finding import BAD, COLOURS, Finding
from .doctor_installation import examine_installation
from .doctor_job import examine_job
from .reporting import emit


@click.command("doctor")
@click.argument("target", required=False, metavar="[ADDRESS]")
@click.option(
    "--listen",
    default="tcp://127.0.0.1:5555",
    show_default=True,
    metavar="ADDRESS",
    help="The address that a balancer here is to have.",
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Look at the clock of this folder's file server, too.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path),
    help="A folder of keys, made by counterpoise keygen: look at it, or ask with it.",
)
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    target: str | None,
    listen: str,
    root: Path | None,
    keys: Path | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Look at this installation, or with an ADDRESS at the job that runs there.

    Exit status: 0 if nothing is wrong (warnings may be there), 1 if something is.

    \b
    Example:
      counterpoise doctor
      counterpoise doctor tcp://10.0.0.1:5555 --keys keys/trainer
    """  # noqa: D301
    if not 0 < timeout < 3600:
        raise ValueError(f"--timeout {timeout}: give seconds between 0 and an hour")
    if target is None:
        findings = examine_installation(listen, root, keys)
    elif "://" in target:
        findings = examine_job(target, timeout, keys)
    else:
        raise ValueError(f"{target!r} is no address; give one such as tcp://HOST:5555, or nothing")
    bad = sum(one.level == BAD for one in findings)
    report = {"findings": [asdict(one) for one in findings], "wrong": bad}
    emit(report, as_json, _table(findings))
    return 1 if bad else 0


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for one in findings:
        level = f"[{COLOURS[one.level]}]{one.level}[/]"
        table.add_row(level, one.name, one.found, one.advice)
    return table
