"""`counterpoise doctor`: checks an installation, job, store, ledger, step or dead letters."""

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
    is_address = target is not None and "://" in target
    is_job = is_address and parse_scheme(str(target)) not in SCHEMES
    for name, value in (("--keys", keys), ("--job", job)):
        if value and not is_job:
            raise ValueError(f"{name} needs ADDRESS, the balancer's that is to be asked")
    if step is not None and is_address:
        raise ValueError("--step needs LEDGER, a file, and an address was given")
    if dead_letter is not None and target is not None:
        raise ValueError("--dead-letter is examined by itself: leave out what stands beside it")
    if dead_letter is not None:
        examination = Examination(examine_dead_letters(dead_letter))
    elif target is None:
        examination = Examination(examine_installation())
    elif parse_scheme(target) in SCHEMES:
        examination = Examination(examine_store(target))
    elif "://" in target:
        examination = examine_job(target, timeout, keys, job)
    elif step is not None and data is not None:
        examination = examine_step(Path(target), step, data)
    elif Path(target).is_file():
        examination = Examination(examine_ledger(Path(target)))
    else:
        raise ValueError(
            f"{target!r} is not an address and not a file; give an address such as "
            "tcp://HOST:5555, a URL such as s3://bucket/train/, the file of a ledger, or nothing "
            "to check this machine"
        )
    return _report(examination, as_json, strict)


def _report(examination: Examination, as_json: bool, strict: bool) -> int:
    """Print the findings; return the exit status."""
    wrong_levels = {BAD, WARN} if strict else {BAD}
    wrong_count = sum(finding.level in wrong_levels for finding in examination.findings)
    findings = [asdict(finding) for finding in examination.findings]
    report: dict[str, object] = {"findings": findings, "wrong": wrong_count}
    if examination.keys:
        report["keys"] = examination.keys
    if examination.status is not None:
        report["job"] = report_fields(examination.status)
    emit(report, as_json, _table(examination.findings))
    return 3 if examination.unanswered else min(1, wrong_count)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        level = f"[{COLOURS[finding.level]}]{finding.level}[/]"
        table.add_row(level, *map(printable, (finding.name, finding.found, finding.advice)))
    return table
