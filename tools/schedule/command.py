"""`counterpoise schedule`: list, show, check, simulate, compare and export pipeline schedules."""

import sys
from pathlib import Path

import click
from rich.console import Console

from ...sched import Program, format_program, problems, schedules, simulate
from ...sched.checking import marked_grid
from ...sched.ir.torch_csv import write_csv
from ...sched.render.text import render_text
from ...sched.simulation.measured import MeasuredStep, dump_step
from ..console.commands import FILE, CommandGroup, json_option
from ..console.reporting import emit
from ..inputs.cost_options import CostSource, read_costed, read_timelines, with_costs
from ..inputs.programs import Size, read_program, with_size
from .compare import compare_command, draw, list_table, picture, rank_table, timeline_report
from .fill import command as fill_command

FORMATS = ("csv", "svg", "trace", "text", "timeline", "times")
USUAL = ("--ranks", "--microbatches", "--costs")
SUFFIXES = {".csv": "csv", ".svg": "svg", ".json": "trace", ".txt": "text"}


@click.group(name="schedule", cls=CommandGroup)
def command() -> None:
    """Show, check, simulate and compare pipeline schedules.

    A program is given as NAME[:OPTION=VALUE,...] (see `list`) or as a file: torch's CSV, or the
    grid that `export --format text` writes. `show` and `compare` also take measured steps (.json).
    Times are milliseconds.

    Example: counterpoise schedule compare 1f1b zb-h1 zbv --out picture.svg
    """


command.add_command(fill_command)
command.add_command(compare_command)


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the registered schedules and their options.

    Example: counterpoise schedule list
    """
    registered = schedules()
    report = {
        schedule.name: {"description": schedule.description, "options": list(schedule.options)}
        for schedule in registered
    }
    emit({"schedules": report}, as_json, list_table(registered))


@command.command(usual=USUAL)
@click.argument("target")
@click.option("--passes", is_flag=True, help="Print the passes in order, not to scale.")
@with_size
@with_costs
def show(target: str, passes: bool, size: Size, costs: CostSource) -> None:
    """Print the timeline of a program or a measured step to scale, or with --passes its grid.

    Example: counterpoise schedule show zb-h1 --ranks 4 --microbatches 8
    """
    if passes:
        click.echo(format_program(read_costed(target, size, costs)))
        return
    timeline = read_timelines([target], size, costs)[0]
    console = Console(soft_wrap=True, highlight=False)
    width = console.width if console.is_terminal else None
    console.print(picture(timeline, costs.unit, width))


@command.command()
@click.argument("target")
@click.option("--limit", type=int, help="The most live activations that a rank may hold.")
@with_size
@json_option
def check(target: str, limit: int | None, size: Size, as_json: bool) -> int:
    """Prove that a program is complete, ordered and free of deadlock; exit with status 1 if not.

    Example: counterpoise schedule check program.csv --limit 8
    """
    program = read_program(target, size)
    faults = problems(program, limit=limit)
    report = {
        "name": program.name,
        "sound": not faults,
        "passes": program.passes,
        "problems": [fault.message for fault in faults],
    }
    if as_json:
        emit(report, as_json)
    elif faults:
        for fault in faults:
            click.echo(f"{program.name}: {fault.message}")
        click.echo(marked_grid(program, faults[0].culprits))
    else:
        click.echo(f"{program.name}: sound; {program.passes} passes on {len(program.ranks)} ranks")
    return 1 if faults else 0


@command.command("simulate", usual=(*USUAL, "--json"))
@click.argument("target")
@with_size
@with_costs
@json_option
def simulate_(target: str, size: Size, costs: CostSource, as_json: bool) -> None:
    """Simulate a program: print its makespan, each rank's bubbles by cause, and peak memory.

    Example: counterpoise schedule simulate 1f1b --ranks 8 --microbatches 64 --costs p2p=0.1
    """
    program = read_costed(target, size, costs)
    timeline = simulate(program, costs.price(program))
    emit(timeline_report(timeline, costs.unit), as_json, rank_table(timeline, costs.unit))


@command.command(usual=("--out", *USUAL))
@click.argument("target")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by --out's suffix.")
@click.option("--out", type=FILE, help="Output file; default: standard output.")
@with_size
@with_costs
def export(target: str, form: str | None, out: Path | None, size: Size, costs: CostSource) -> None:
    """Write a program as torch's CSV or as text, or its timeline as SVG, trace or text.

    `text` is the grid, which all commands can read; `timeline` is text to scale; `times` is JSON of
    every pass's start and end, as measured steps have it; `trace` opens in ui.perfetto.dev.

    Example: counterpoise schedule export zbv --out zbv.csv
    """
    chosen = form or SUFFIXES.get(out.suffix if out else ".txt")
    if chosen is None:
        raise ValueError(
            f"--out {out} has no suffix of a known format; add --format {'|'.join(FORMATS)}"
        )
    if chosen == "csv":
        text = write_csv(read_program(target, size))
    else:
        text = _render_export(read_costed(target, size, costs), chosen, costs)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, "utf-8")
        click.echo(f"wrote {out}", err=True)


def _render_export(program: Program, form: str, costs: CostSource) -> str:
    if form == "text":
        return format_program(program) + "\n"
    timeline, unit = simulate(program, costs.price(program)), costs.unit
    if form == "times":
        return dump_step(MeasuredStep(timeline)) + "\n"
    suffix = {"svg": ".svg", "trace": ".json"}.get(form, "")
    return draw(suffix, [timeline], "", unit) or render_text(timeline, unit=unit) + "\n"
