"""The command `counterpoise doctor`: checks an installation, a job, a ledger or dead letters."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from ...workers.sources.urls import SCHEMES, parse_scheme
from ..console.commands import FILE, Command, json_option
from ..console.reporting import emit
from .figures import BAD, COLOURS, WARN, Finding, printable, report_fields
from .files import examine_dead_letters, examine_ledger, examine_step
from .installation import examine_installation, examine_store
from .job import Examination, examine_job


@click.command("doctor", cls=Command, usual=("--keys", "--job", "--strict", "--json"))
@click.argument("target", required=False, metavar="[ADDRESS|LEDGER|URL]")
@click.option(
    "--keys", type=FILE,
    help="A trainer's keys, made by counterpoise keygen, to ask the balancer at ADDRESS.",
)  # fmt: skip
@click.option(
    "--dead-letter", type=FILE,
    help="Group the samples in this dead-letter file by source and reason.",
)  # fmt: skip
@click.option("--step", type=int, help="Name the samples of this step of the LEDGER's epoch.")
@click.option("--data", metavar="SOURCE", help="The data of --step: MODULE:NAME, shards, a recipe.")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for answers.")
@click.option("--job", default="", help="The job to look at, of a balancer with several.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
def command(
    target: str | None, keys: Path | None, dead_letter: Path | None, step: int | None,
    data: str | None, timeout: float, job: str, strict: bool, as_json: bool,
) -> int:  # fmt: skip
    """Check this installation, the job at an ADDRESS, a LEDGER (a JSON file), or a URL of shards.

    Exit status: 0 if nothing is wrong (there may be warnings), 1 if something is wrong, 3 if the
    job did not answer.

    \b
    Example:
      counterpoise doctor
      counterpoise doctor tcp://10.0.0.1:5555 --keys keys/trainer
      counterpoise doctor ledger.json
      counterpoise doctor s3://bucket/train/
      counterpoise doctor ledger.json --step 1200 --data my_module:data
      counterpoise doctor --dead-letter letters.jsonl
    """  # noqa: D301
    if not 0 < timeout < 3600:
        raise ValueError(f"--timeout {timeout}: give seconds between 0 and an hour")
    if (step is None) != (data is None) or (step is not None and target is None):
        raise ValueError("--step needs LEDGER and --data, the data set that it is of")
    if keys is not None and "://" not in str(target):
        raise ValueError("--keys needs ADDRESS, the balancer's that is to be asked")
    if dead_letter is not None:
        found = Examination(examine_dead_letters(dead_letter))
    elif target is None:
        found = Examination(examine_installation())
    elif parse_scheme(target) in SCHEMES:
        found = Examination(examine_store(target))
    elif "://" in target:
        found = examine_job(target, timeout, keys, job)
    elif step is not None and data is not None:
        found = examine_step(Path(target), step, data)
    elif Path(target).is_file():
        found = Examination(examine_ledger(Path(target)))
    else:
        raise ValueError(
            f"{target!r} is not an address and not a file; give an address such as "
            "tcp://HOST:5555, a URL such as s3://bucket/train/, the file of a ledger, or nothing "
            "to check this machine"
        )
    return _report(found, as_json, strict)


def _report(found: Examination, as_json: bool, strict: bool) -> int:
    """Print the findings; return the exit status."""
    wrong = {BAD, WARN} if strict else {BAD}
    count = sum(one.level in wrong for one in found.findings)
    findings = [asdict(one) for one in found.findings]
    report: dict[str, object] = {"findings": findings, "wrong": count}
    if found.keys:
        report["keys"] = found.keys
    if found.status is not None:
        report["job"] = report_fields(found.status)
    emit(report, as_json, _table(found.findings))
    return 3 if found.unanswered else min(1, count)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for one in findings:
        level = f"[{COLOURS[one.level]}]{one.level}[/]"
        table.add_row(level, *map(printable, (one.name, one.found, one.advice)))
    return table
