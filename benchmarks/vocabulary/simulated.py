"""`make bench NAME=vocabulary`: simulates vocabulary parallelism and its baselines.

It reproduces the paper's claims: memory and bubbles from the building blocks, the speed-ups of 24
model settings from operation counts, and utilisation, order and memory on 8 A100 from measured pass
times, if the authors' files are given with --data.
"""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.sched import Program, check, schedule, simulate, unit_costs
from counterpoise.sched.generators.vocabulary import vocabulary
from counterpoise.sched.shapes import Device, TransformerLayer, Vocabulary
from counterpoise.tools.console.reporting import emit, progress_console

from ..baselines.vocabulary_placements import ModelTimes, arrange
from .golden import golden, golden_tables

Report = dict[str, Any]

SIZES = (4, 8, 16, 32)
MICROBATCHES = 128
# A layer's forward 10, its backward 20, each output pass 2: the paper's pattern is for these.
UNITS = unit_costs(10, 20, 2)
MODELS = {"4B": (8, 32, 3072), "10B": (16, 48, 4096), "21B": (32, 64, 5120)}
WORDS = {"32k": 2**15, "64k": 2**16, "128k": 2**17, "256k": 2**18}


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder with the authors' measurements; without it the golden part is left out.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(data: Path | None, as_json: bool) -> None:
    """Simulate vocabulary parallelism and its baselines.

    Example: make bench NAME=vocabulary ARGS="--data $DATA --json"
    """
    report: Report = {"peak_microbatches": {}, "bubble": {}}
    for ranks in SIZES:
        for name, program in _forms(ranks).items():
            check(program)
            timeline = simulate(program, UNITS)
            peaks = report["peak_microbatches"].setdefault(str(ranks), {})
            peaks[name] = max(timeline.peak_bytes)
            bubbles = report["bubble"].setdefault(str(ranks), {})
            bubbles[name] = round(timeline.bubble_ratio, 5)
    report["speedup"] = _speedups()
    report["golden"] = golden(data / "golden") if data else {}
    emit(report, as_json, *_tables(report))


def _forms(ranks: int) -> dict[str, Program]:
    def cut(form: str) -> Program:
        return vocabulary("1f1b", form, ranks=ranks, microbatches=MICROBATCHES)

    base = schedule("1f1b", ranks=ranks, microbatches=MICROBATCHES)
    return {"base": base, "alg1": cut("alg1"), "alg2": cut("alg2")}


def _speedups() -> Report:
    """Return ratios of makespans, computed from operation counts."""
    report: Report = {}
    for model, (ranks, layers, hidden) in MODELS.items():
        progress_console.print(f"{model}: {ranks} ranks, {layers} layers")
        for tokens in (2048, 4096):
            for name, words in WORDS.items():
                base, redis, one, two = _makespans(ranks, layers, hidden, tokens, words)
                report.setdefault(model, {}).setdefault(str(tokens), {})[name] = {
                    "redis_over_base": round(base / redis, 4),
                    "alg1_over_base": round(base / one, 4),
                    "alg2_over_base": round(base / two, 4),
                    "alg1_over_redis": round(redis / one, 4),
                    "alg2_over_redis": round(redis / two, 4),
                }
    return report


def _makespans(ranks: int, layers: int, hidden: int, tokens: int, words: int) -> list[int]:
    device = Device()
    layer = device.compute_ns(
        TransformerLayer(hidden).forward_flops(tokens=tokens, pairs=tokens**2)
    )
    output = device.compute_ns(Vocabulary(hidden, words).forward_flops(tokens))
    times = ModelTimes(layers, layer, 2 * layer, output, 2 * output)
    return [
        simulate(*arrange(method, times, ranks=ranks, microbatches=MICROBATCHES)).makespan_ns
        for method in ("last-stage", "redis", "alg1", "alg2")
    ]


def _tables(report: Report) -> list[Table]:
    """Return the tables of memory, of speed-ups and, with the authors' data, of utilisation."""
    memory = Table("ranks", "form", "peak microbatches", "bubble", title="1F1B, 128 microbatches")
    for ranks, peaks in report["peak_microbatches"].items():
        for name, peak in peaks.items():
            memory.add_row(ranks, name, str(peak), f"{100 * report['bubble'][ranks][name]:.2f} %")
    columns = ("redis_over_base", "alg1_over_base", "alg2_over_base", "alg1_over_redis")
    speed = Table("model", "sequence", "vocabulary", *columns, title="speed-up by operations")
    for model, by_tokens in report["speedup"].items():
        for tokens, by_words in by_tokens.items():
            for words, cell in by_words.items():
                speed.add_row(model, tokens, words, *(f"{cell[name]:.3f}" for name in columns))
    return [memory, speed, *golden_tables(report["golden"])]
