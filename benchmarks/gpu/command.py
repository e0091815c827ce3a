"""`make bench NAME=gpu`: everything that waits for a GPU, on whatever devices are there.

Each part runs in processes of its own, with a limit of time: one that fails, hangs or kills its
device says so in its table, and the others go on.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from counterpoise.tools.console.reporting import emit, progress_console

from .copies import measure_copies
from .existing import measure_pipelines, measure_vocabulary
from .filling import measure_filling
from .machine import Machine, this_machine
from .packed import measure_packed
from .parts import Part, Task, failure
from .tensor import measure_tensor
from .training import measure_training

PAGES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PARTS: dict[str, Part] = {
    "training": Part("Steps of a vision-language model, by order of samples", measure_training),
    "packed": Part("Packed samples in models of transformers", measure_packed),
    "copies": Part("Copies to the device, and loaders that pin", measure_copies),
    "vocabulary": Part("Loss of a large vocabulary: one of 4 shards' passes", measure_vocabulary),
    "pipelines": Part("Pipelines: our runtime and torch's", measure_pipelines, devices=2),
    "filling": Part("Encoder layers in the bubbles of 1F1B", measure_filling, devices=2),
    "tensor": Part("Tensor-parallel layers, in chunks", measure_tensor, devices=2),
}
FAILED = "failed"


@click.command("gpu")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=10, show_default=True)
@click.option("--part", "chosen", type=click.Choice(list(PARTS)), multiple=True)
@click.option("--devices", type=click.IntRange(1), help="At most so many; by default all.")
@click.option("--shards", help="Train on these tars, in place of the demo's data set.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The page to write.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
@click.pass_context
def command(
    context: click.Context,
    minutes: float,
    chosen: Sequence[str],
    devices: int | None,
    shards: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    r"""Measure all parts that need a GPU on this machine's devices, and write a page of tables.

    Without a GPU tiny models run on the CPU: figures that say "cpu", and are written only with
    --out. A part that fails says so, the others go on, and the exit code is 1.

    \b
    Examples:
      make bench NAME=gpu ARGS='--minutes 10 --json'
      make bench NAME=gpu ARGS='--part training --shards "data/*.tar"'
    """
    machine = this_machine(devices)
    end = time.monotonic() + 60 * minutes
    names = [name for name in PARTS if not chosen or name in chosen]
    words = " ".join([f"--minutes {minutes:g}", *(f"--part {name}" for name in chosen)])
    tables: dict[str, Any] = {}
    for number, name in enumerate(names):
        progress_console.print(f"{number + 1}/{len(names)} {name}, on {machine.name}")
        seconds = max(0.0, end - time.monotonic()) / (len(names) - number)
        task = Task(machine.device, machine.devices, seconds, machine.name, shards)
        tables[name] = run_part(PARTS[name], task)
    if out is None and machine.device == "cuda":
        out = PAGES / f"gpu-{machine.name.lower().replace(' ', '-')}.md"
    if out is not None:
        out.write_text(page(machine, tables, words), "utf-8")
        progress_console.print(f"wrote {out}", soft_wrap=True)
    if as_json:
        emit({"machine": machine.facts(), "parts": tables}, as_json)
    else:
        click.echo(page(machine, tables, words))
    if any(FAILED in str(each) for each in tables.values()):
        context.exit(1)


def run_part(part: Part, task: Task) -> list[Mapping[str, str]]:
    """Return the rows of a part; one that says why, where it could not be measured."""
    if task.devices < part.devices:
        return [{"result": f"not run: needs {part.devices} devices, and {task.devices} is there"}]
    try:
        return list(part.run(task))
    except Exception as error:  # a driver may raise anything
        progress_console.print(str(error), markup=False)
        return [{"result": failure(error)}]


def page(machine: Machine, tables: Mapping[str, list[Mapping[str, str]]], words: str) -> str:
    """Return the tables as a page of docs/benchmarks/, with the machine that they are from."""
    lines = [
        f"# Measured on {machine.name}", "",
        "After reading this page you know what each part of counterpoise does on this device.", "",
        f'`make bench NAME=gpu ARGS="{words}"` wrote it; '
        "[what the parts are](gpu.md).", "",
        *_markdown([{"machine": name, "": each} for name, each in machine.facts().items()]),
    ]  # fmt: skip
    for name, rows in tables.items():
        lines += ["", f"## {PARTS[name].title}", "", *_markdown(rows)]
    lines += ["", "Next: [what the parts are](gpu.md), [all measurements](benchmarks.md)", ""]
    return "\n".join(lines)


def _markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    columns = list(rows[0])
    # a cell of an error may hold anything
    cells = [[row[name].replace("|", "\\|") for name in columns] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (columns, ["--"] * len(columns), *cells)]
