"""`counterpoise doctor`: an installation, a running job, a ledger or a dead-letter file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from .doctor_finding import BAD, COLOURS, Finding
from .doctor_installation import examine_installation
from .doctor_job import examine_job
from .doctor_ledger import examine_ledger
from .doctor_letters import examine_letters
from .reporting import emit


@click.command("doctor")
@click.argument("target", required=False, metavar="[ADDRESS|LEDGER]")
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
@click.option(
    "--dead-letter",
    type=click.Path(path_type=Path),
    help="Group the samples in this dead-letter file by source and reason.",
)
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for answers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    target: str | None,
    listen: str,
    root: Path | None,
    keys: Path | None,
    dead_letter: Path | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Look at this installation, at the job at an ADDRESS, or at a LEDGER (a JSON file).

    Exit status: 0 if nothing is wrong (warnings may be there), 1 if something is.

    \b
    Example:
      counterpoise doctor
      counterpoise doctor tcp://10.0.0.1:5555 --keys keys/trainer
      counterpoise doctor ledger.json
      counterpoise doctor --dead-letter letters.jsonl
    """  # noqa: D301
    if not 0 < timeout < 3600:
        raise ValueError(f"--timeout {timeout}: give seconds between 0 and an hour")
    if dead_letter is not None:
        findings = examine_letters(dead_letter)
    elif target is None:
        findings = examine_installation(listen, root, keys)
    elif "://" in target:
        findings = examine_job(target, timeout, keys)
    elif Path(target).is_file():
        findings = examine_ledger(Path(target))
    else:
        raise ValueError(
            f"{target!r} is no address and no file; give one such as tcp://HOST:5555, a ledger's "
            "file, or nothing"
        )
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
