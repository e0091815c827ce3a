"""The command `counterpoise trace`: writes what a job's parties did when, for Perfetto."""

import json
from pathlib import Path

import click

from ...balancer.protocol.trace_messages import MAX_TRACE_MS, StartTrace, TraceReport
from ...balancer.server.tracing import GRACE_S
from ...balancer.transport.asking import observe
from ...balancer.transport.keys import PeerKeys
from ..console.commands import Command
from ..doctor.asking import asking_options
from .chrome import trace_events

ANSWER_S = 5.0


@click.command("trace", cls=Command)
@asking_options
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1, MAX_TRACE_MS / 1000),
    help="Record for so long.",
)  # fmt: skip
@click.option(
    "--out", default=Path("trace.json"), show_default=True,
    type=click.Path(dir_okay=False, path_type=Path), help="The file to write.",
)  # fmt: skip
def command(address: str, keys: PeerKeys | None, seconds: float, job: str, out: Path) -> int:
    """Record how samples go from probe to trainer at the balancer at ADDRESS, all on one clock.

    Open the file at https://ui.perfetto.dev, or in chrome://tracing. Exit status: 0, or 3 where no
    balancer answers.

    \b
    Example:
      counterpoise trace tcp://10.0.0.1:5555 --keys keys/trainer --seconds 10 --out trace.json
    """  # noqa: D301
    with observe(address, keys, job) as observer:
        question = StartTrace(round(1000 * seconds))
        answer = observer.ask(question, TraceReport, seconds + GRACE_S + ANSWER_S)
    if isinstance(answer, str):
        click.echo(f"counterpoise: {address}: {answer}", err=True)
        return 3
    out.write_text(json.dumps(trace_events(answer)) + "\n", "utf-8")
    spans = sum(len(party.spans) for party in answer.parties)
    click.echo(f"wrote {out}: {spans} spans of {len(answer.parties)} parties")
    return 0
