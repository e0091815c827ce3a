"""The demo's pipeline as a command: its options, what it prints, and its page."""

import functools
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from ...console.reporting import emit, progress_console
from .processes import PROCESSES, example, run_ranks

# Options of the demo that both of its forms take.
_SHARED = {"data", "as_json", "pipeline"}
_PIPELINE = click.option(
    "--pipeline", is_flag=True, help="Train on a pipeline, encoder in its bubbles."
)
_OWN = {
    "steps": click.option(
        "--steps", default=20, show_default=True, type=click.IntRange(1), help="With --pipeline."
    ),
    "pp": click.option(
        "--pp",
        default="4",
        show_default=True,
        type=click.Choice(["2", "4"]),
        help="With --pipeline: ranks of a pipeline, of 4 processes.",
    ),
    "replan": click.option(
        "--replan",
        default="on",
        show_default=True,
        type=click.Choice(["on", "off"]),
        help="With --pipeline: plan again where steps take other times.",
    ),
    "out": click.option(
        "--out",
        type=click.Path(path_type=Path, dir_okay=False),
        help="With --pipeline: the timeline page [default: in the user's cache].",
    ),
}


@dataclass(frozen=True, slots=True)
class PipelineDemo:
    """The options of the demo's pipeline."""

    steps: int
    pp: str
    replan: str
    out: Path | None


def with_pipeline_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --pipeline and its options to the demo, which gets them as `pipeline`, or None.

    Raises ValueError for options of the form that does not run.
    """

    @functools.wraps(function)
    def command(pipeline: bool, **given: Any) -> Any:
        own = {name: given.pop(name) for name in _OWN}
        _refuse_others(own if not pipeline else given, pipeline)
        return function(pipeline=PipelineDemo(**own) if pipeline else None, **given)

    # The last one that is added is the first of the help.
    every = [_PIPELINE, *_OWN.values()]
    return functools.reduce(lambda made, option: option(made), reversed(every), command)


def _refuse_others(others: Mapping[str, Any], pipeline: bool) -> None:
    """Raise ValueError for an option that was given, and does not belong to what runs."""
    ctx = click.get_current_context()
    for name in others:
        source = ctx.get_parameter_source(name)
        if name not in _SHARED and source == ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            known = ", ".join(f"--{name}" for name in _OWN)
            raise ValueError(
                f"{option} says nothing with --pipeline, which takes --data, --json, {known}"
                if pipeline
                else f"{option} needs --pipeline; leave it out, or add --pipeline"
            )


def show_pipeline(demo: PipelineDemo, data: str | None, cache: Path, *, as_json: bool) -> None:
    """Train, print a line for each step and a summary, and write the timeline's page."""
    page = (demo.out or cache / "demo-pipeline.html").absolute()
    words = ["--pp", demo.pp, "--steps", str(demo.steps), "--replan", demo.replan]
    words += ["--page", str(page), "--json"]
    words += ["--data", data] if data else []
    program = example()
    progress_console.print(f"running {program} on {PROCESSES} processes", soft_wrap=True)
    report: dict[str, Any] = {}
    with closing(run_ranks(program, words)) as lines:
        for line in lines:
            if line.startswith("{"):
                report = json.loads(line)
            else:
                # With --json the report alone goes to standard output.
                print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    emit(report, as_json, _table(report))
    told = f"the last step's timeline, measured over simulated: {page}"
    progress_console.print(told, soft_wrap=True)


def _table(report: Mapping[str, Any]) -> Table:
    table = Table("", "measured", "simulated", caption="medians of all steps", box=None)
    steps = (f"{report[name]:.3f} s" for name in ("step_measured", "step_simulated"))
    table.add_row("step", *steps)
    planned = f"{report['hidden_planned']:.0%} (as planned)"
    table.add_row("encoder hidden", f"{report['hidden_measured']:.0%}", planned)
    table.add_row("loss", f"{report['loss_first']:.3f} to {report['loss_last']:.3f}", "")
    for change in report["plan_changes"]:
        gains = (f"{change[name]:.1%} shorter" for name in ("gain_measured", "gain_simulated"))
        table.add_row(f"planned again before step {change['step']}", *gains)
    return table
