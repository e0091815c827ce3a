"""`make bench NAME=schedules`: simulates all registered schedules on one model, and is timed.

Every schedule gets the same work: a rank's forward is divided by the number of its chunks, an
output layer (for those that have vocabulary passes) is extra work that all have, on the last
stage where it is not cut.
"""

import time
from typing import Any

import click
from rich import table as rich_table

from counterpoise.sched import Costs, Program, check, schedule, schedules, simulate, unit_costs
from counterpoise.sched.simulation.costs import Table
from counterpoise.tools.console.reporting import emit, progress_console
from counterpoise.tools.inputs.cost_options import collective_ns
from counterpoise.tools.inputs.programs import PACE

Report = dict[str, Any]


@click.command()
@click.option("--ranks", default=8, show_default=True, help="Pipeline ranks.")
@click.option("--microbatches", default=64, show_default=True, help="Microbatches a step.")
@click.option(
    "--output",
    default=0,
    show_default=True,
    help="Output layer's forward in percent of a rank's forward.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(ranks: int, microbatches: int, output: int, as_json: bool) -> None:
    """Simulate every schedule with the same work; time the checker and the simulator.

    Example: make bench NAME=schedules ARGS='--ranks 8 --microbatches 64 --output 50 --json'
    """
    report: Report = {"schedules": {}, "speed": _speed()}
    for found in schedules():
        try:
            times = (1200, 2400, 3600 * output // (100 * ranks))
            pace = dict(zip(PACE, times, strict=True)) if set(PACE) <= set(found.options) else {}
            program = schedule(found.name, ranks=ranks, microbatches=microbatches, **pace)
        except ValueError as error:  # not for this size; the others are
            progress_console.print(f"left out: {error}")
            continue
        check(program)
        timeline = simulate(program, shared_costs(program, output))
        chunks = program.stages // ranks
        report["schedules"][found.name] = {
            "makespan": timeline.makespan_ns,
            "bubble": round(timeline.bubble_ratio, 5),
            "peak": round(max(timeline.peak_bytes) / chunks, 3),
        }
    emit(report, as_json, *_tables(report))


def shared_costs(program: Program, output_percent: int) -> Costs:
    """Return costs of the same work for all schedules: forward 1.2 ms a rank, backward 2.4."""
    ranks = len(program.ranks)
    chunks = program.stages // ranks
    forward = 1_200_000 // chunks
    output = 1_200_000 * output_percent // 100
    cut = any(barrier.name == "CX" for barrier in program.barriers)
    first = [forward] * program.stages
    back = [2 * forward] * program.stages
    half = [forward] * program.stages
    if not cut:
        first[-1] += output
        back[-1] += 2 * output
        half[-1] += output
    split: dict[str, Table] = {"S": output // ranks, "T": 2 * output // ranks}
    if any(barrier.source == "barrier" for barrier in program.barriers):
        split = {"S": 2 * output // ranks, "T": output // ranks}
    naive: dict[str, Table] = {"L": output // ranks, "E": 0, "G": 2 * output // ranks}
    barriers = (barrier.name for barrier in program.barriers)
    collective = collective_ns(1_200_000, ranks) if output else 0
    return Costs(
        {"F": first, "B": back, "I": half, "W": half, **split, **naive},
        collective_ns=dict.fromkeys(barriers, collective),
    )


def _speed() -> Report:
    """Return the seconds to check and simulate a small and a large program, best of three."""
    small = schedule("1f1b", ranks=8, microbatches=128)
    large = schedule("interleaved", ranks=16, microbatches=256, chunks=12)
    return {
        name: {
            "passes": program.passes,
            "check_s": _best(lambda p=program: check(p)),
            "simulate_s": _best(lambda p=program: simulate(p, unit_costs(10, 20))),
        }
        for name, program in (("1f1b_8x128", small), ("interleaved_16x12x256", large))
    }


def _best(work: Any) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return round(min(times), 4)


def _tables(report: Report) -> list[rich_table.Table]:
    table = rich_table.Table("schedule", "makespan ms", "bubble", "peak microbatches")
    ranked = sorted(report["schedules"].items(), key=lambda pair: pair[1]["makespan"])
    for name, row in ranked:
        bubble = f"{100 * row['bubble']:.1f} %"
        table.add_row(name, f"{row['makespan'] / 1e6:.2f}", bubble, str(row["peak"]))
    speed = rich_table.Table("program", "passes", "check s", "simulate s")
    for name, row in report["speed"].items():
        cells = (str(row[key]) for key in ("passes", "check_s", "simulate_s"))
        speed.add_row(name, *cells)
    return [table, speed]
