"""`make bench NAME=runtime`: our runtime against torch's, or against the simulator."""

import os
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.console.reporting import emit, progress_console

from .compare import compare
from .contenders import PipelineCase
from .model import PipelineSizes
from .ordered import measure_orders
from .sleeping import CASES, measure_cases

Report = dict[str, Any]
_SHARED = ("1f1b", "interleaved", "zbv")
_MIB, _DRAWS = 2**20, 4
_OWN = {
    "ours_outside": "us a pass, ours alone",
    "ours": "with modules, autograd, c10d",
    "torch": "the same, torch",
}


@click.command()
@click.option("--schedule", "schedules", multiple=True, type=click.Choice(_SHARED))
@click.option("--ranks", default=4, help="Processes, each with one thread.")
@click.option("--microbatches", default=8)
@click.option("--blocks", default=8, help="Transformer blocks of the whole model.")
@click.option("--hidden", default=256, help="Size of the hidden states.")
@click.option("--tokens", default=128, help="Tokens of a microbatch.")
@click.option("--words", default=1024, help="Size of the vocabulary.")
@click.option("--rounds", default=10, help="Interleaved rounds.")
@click.option("--repeats", default=3, help="Steps of each contender in a round.")
@click.option("--late-receives", is_flag=True, help="torch's option defer_pp_recv.")
@click.option("--sleep", is_flag=True, help="Stages sleep: makespans against the simulator's.")
@click.option("--order", type=click.Path(path_type=Path), help="Order microbatches of this npz.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(
    schedules: tuple[str, ...],
    rounds: int,
    repeats: int,
    late_receives: bool,
    sleep: bool,
    order: Path | None,
    as_json: bool,
    **sizes: int,
) -> None:
    """Time training steps of our runtime and of torch.distributed.pipelining, on gloo.

    Ratios are torch's time or bytes over ours: at 1 both are equal, above 1 ours is better. With
    --sleep, the makespans of ten programs whose passes sleep known times, against the simulator's.
    With --order, four steps of microbatches from a file of costs, in the order that Balance(
    ordering="two_opt") plans and in the given one: the gain, simulated and measured.

    Example: make bench NAME=runtime ARGS='--schedule zbv --rounds 3'
    """
    if sleep:
        progress_console.print(f"{len(CASES)} programs, {repeats + 1} steps each")
        found = measure_cases(CASES, repeats)
        emit(found, as_json, sleep_table(found))
        return
    if order is not None:
        found = measure_orders(order, _DRAWS, repeats)
        emit(found, as_json, order_table(found))
        return
    report: Report = {
        "ratios": "torch / ours",
        "cores": len(os.sched_getaffinity(0)),
        "sizes": sizes,
        "schedules": {},
    }
    for name in schedules or _SHARED:
        progress_console.print(name)
        setting = PipelineCase(name, PipelineSizes(**sizes), late_receives=late_receives)
        report["schedules"][name] = compare(setting, rounds, repeats)
    emit(report, as_json, comparison_table(report))


def comparison_table(report: Report) -> Table:
    """Return times, bytes, errors and the cost of a pass: a row for each, a column a schedule."""
    cells = report["schedules"].values()
    table = Table("", *report["schedules"], title="torch / ours above 1: ours is better")
    table.add_row("step, torch / ours", *(_text(cell["time_ratio"]) for cell in cells))
    table.add_row("its CPU, torch / ours", *(_text(cell["cpu_ratio"]) for cell in cells))
    for who in ("ours", "torch"):
        table.add_row(f"step, {who}, ms", *(_text(cell["step_ms"][who], 1) for cell in cells))
    for key, name in (("saved_bytes", "saved"), ("peak_bytes", "allocated")):
        ratios = (f"{cell[f'{key}_ratio']:.2f}" for cell in cells)
        table.add_row(f"bytes {name}, torch / ours", *ratios)
        for who in ("ours", "torch"):
            # of all ranks the fullest, which decides whether a model fits
            most = (f"{max(cell[key][who]) / _MIB:.1f}" for cell in cells)
            table.add_row(f"{name}, {who}, MiB", *most)
    for who in ("ours", "torch"):
        errors = (f"{cell['max_relative_error'][who]:.0e}" for cell in cells)
        table.add_row(f"gradients' error, {who}", *errors)
    for key, name in _OWN.items():
        table.add_row(name, *(_text(cell["us_per_pass"][key], 1) for cell in cells))
    return table


def order_table(report: Report) -> Table:
    """Return the gains of ordering, a row for each step."""
    verdict = "agree" if report["agrees"] else "do not agree"
    table = Table("step", "gain, simulated", "measured", caption=f"gains {verdict} (3 points)")
    for number, one in enumerate(report["draws"]):
        table.add_row(str(number), f"{one['simulated']:.1%}", f"{one['measured']:.1%}")
    table.add_row("all", f"{report['gain_simulated']:.1%}", f"{report['gain_measured']:.1%}")
    return table


def sleep_table(report: Report) -> Table:
    """Return simulated and measured makespans, and the verdict."""
    caption = "all within 10 %, in the same order" if report["agrees"] else "they do not agree"
    columns = ("program", "simulated, ms", "measured, ms", "measured / simulated")
    table = Table(*columns, caption=caption)
    cells = sorted(report["programs"].items(), key=lambda item: item[1]["simulated_ms"])
    for name, cell in cells:
        middle, least, most = cell["measured_ms"]
        spread = f"{middle:.1f} ({least:.1f}-{most:.1f})"
        table.add_row(name, f"{cell['simulated_ms']:.1f}", spread, f"{cell['ratio']:.3f}")
    for faster, slower in report["swapped"]:
        table.add_row(f"{slower} was not slower than {faster}", "", "", "")
    return table


def _text(spread: list[float], digits: int = 3) -> str:
    middle, least, most = (f"{value:.{digits}f}" for value in spread)
    return f"{middle} ({least}-{most})"
