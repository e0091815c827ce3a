"""Simulation of the authors' runs on 8 A100 from measured pass times, beside what they report.

Utilisation is compared with that of the run whose passes were timed; the reported figures are of
other runs, which at 4,096 tokens were 5 to 11 % faster. Memory is computed, not fitted to each run:
18 bytes a parameter (Megatron-LM in fp16 on one data-parallel rank), 32 bytes per token and width
for a layer without dropout, 6 bytes a logit, and 0.9 GiB of CUDA context and fragments.
"""

from pathlib import Path
from typing import Any

from rich.table import Table

from counterpoise.sched import Costs, Program, schedule, simulate
from counterpoise.sched.generators.blocks import Pace
from counterpoise.sched.generators.vocabulary import FORMS, vocabulary

from ..baselines.vocabulary_measurements import MeasuredRun, read_measured, read_runs
from ..baselines.vocabulary_placements import ModelTimes, redistribute

Report = dict[str, Any]

STATE_BYTES, LAYER_BYTES, LOGIT_BYTES, BESIDE_BYTES = 18, 32, 6, 9 * 2**30 // 10
MOST_OFF = 0.08
TIE = 0.1


def golden(data: Path) -> Report:
    """Return utilisation, memory and the order of the methods of all runs, and their summary."""
    measured = read_measured(data)
    cells: Report = {}
    for run in read_runs(data):
        words = f"{run.words // 1000}k"
        cell = cells.setdefault(str(run.tokens), {}).setdefault(words, {})
        reported = measured[run.tokens, words, run.method]
        program, costs = measured_program(run)
        timeline = simulate(program, costs)
        cell[run.method] = {
            "simulated": round(run.utilisation(timeline.makespan_ns), 2),
            "measured": reported.utilisation,
            "same_run": round(run.utilisation(round(run.iteration_ms * 1e6)), 2),
            "peak_gib": round(max(timeline.peak_bytes) / 2**30, 2),
            "measured_gib": reported.peak_gib,
        }
    return {"cells": cells, **_summary(cells)}


def _summary(cells: Report) -> Report:
    rows = [
        (f"{method} {tokens} {words}", row)
        for tokens, by_words in cells.items()
        for words, methods in by_words.items()
        for method, row in methods.items()
    ]
    off = {name: row["peak_gib"] / row["measured_gib"] - 1 for name, row in rows}
    missed = {name: round(part, 3) for name, part in off.items() if abs(part) > MOST_OFF}
    return {
        "most_points_off": max(abs(row["simulated"] - row["same_run"]) for _, row in rows),
        "ordered_cells": sum(
            same_order([(row["simulated"], row["measured"]) for row in methods.values()])
            for by_words in cells.values()
            for methods in by_words.values()
        ),
        "memory_within": len(off) - len(missed),
        "memory_missed": missed,
    }


def same_order(pairs: list[tuple[float, float]]) -> bool:
    """Return whether (simulated, reported) figures have one order, but for ties in either.

    >>> same_order([(1.0, 5.0), (2.0, 6.0), (2.05, 5.95)]), same_order([(1.0, 6.0), (2.0, 5.0)])
    (True, False)
    """
    return all(
        (a[0] - b[0]) * (a[1] - b[1]) > 0 or min(abs(a[0] - b[0]), abs(a[1] - b[1])) <= TIE
        for n, a in enumerate(pairs)
        for b in pairs[:n]
    )


def measured_program(run: MeasuredRun) -> tuple[Program, Costs]:
    """Return a run's program, measured times and computed bytes; S and T by operation count."""
    ranks, count = len(run.forward_us), run.microbatches
    forward, backward, output = (
        [us * 1000 for us in times] for times in (run.forward_us, run.backward_us, run.output_us)
    )
    cut = run.method not in ("base", "redis")
    memory = _memory(run, cut)
    passes = {"F": forward, "B": backward}
    if not cut:
        return schedule("1f1b", ranks=ranks, microbatches=count), Costs(passes, **memory)
    thirds = FORMS.get(run.method, FORMS["alg1"]).thirds
    passes["S"] = [ns * thirds[0] // 3 for ns in output]
    passes["T"] = [ns - first for ns, first in zip(output, passes["S"], strict=True)]
    if run.method == "interlaced":
        program = schedule("1f1b-interlaced", ranks=ranks, microbatches=count)
    else:
        pace = Pace(*(sum(times) // ranks for times in (forward, backward, output)))
        program = vocabulary("1f1b", run.method, ranks=ranks, microbatches=count, pace=pace)
    return program, Costs(passes, **memory)


def _memory(run: MeasuredRun, cut: bool) -> dict[str, Any]:
    """Return the bytes of buffers and of what a rank holds throughout."""
    ranks, width, tokens = len(run.forward_us), run.hidden, run.tokens
    layers = [run.layers // ranks] * ranks
    if run.method == "redis":
        layer = 24 * tokens * width**2 + 4 * tokens**2 * width
        output = 2 * tokens * width * run.words
        times = ModelTimes(run.layers, layer, 2 * layer, output, 2 * output)
        layers = list(redistribute(times, ranks))
    rows = [run.words] + [0] * (ranks - 2) + [run.words]
    if cut:
        rows = [2 * run.words // ranks] * ranks
    # The first stage also has the positions' embedding.
    parameters = [
        count * (12 * width + 13) * width + (words + (0 if rank else tokens)) * width
        for rank, (count, words) in enumerate(zip(layers, rows, strict=True))
    ]
    logits = LOGIT_BYTES * tokens * run.words
    held = [STATE_BYTES * each + BESIDE_BYTES for each in parameters]
    if not cut:
        held[-1] += logits
    return {
        "buffer_bytes": {
            "activation": [LAYER_BYTES * tokens * width * count for count in layers],
            "logits": logits // ranks,
        },
        "parameter_bytes": held,
    }


def golden_tables(report: Report) -> list[Table]:
    """Return utilisation and memory as tables, none without the authors' data."""
    if not report:
        return []
    table = Table(
        "sequence", "vocabulary", "method", "simulated", "same run", "reported", "GiB", "reported",
        title="MFU in percent and peak memory, 8 A100",
    )  # fmt: skip
    for tokens, by_words in report["cells"].items():
        for words, methods in by_words.items():
            for method, cell in methods.items():
                keys = ("simulated", "same_run", "measured", "peak_gib", "measured_gib")
                table.add_row(tokens, words, method, *(f"{cell[key]:.1f}" for key in keys))
    missed = ", ".join(f"{name} {part:+.1%}" for name, part in report["memory_missed"].items())
    table.caption = (
        f"at most {report['most_points_off']:.2f} points from the same run; methods in the "
        f"reported order in {report['ordered_cells']} of 8; memory within {MOST_OFF:.0%} in "
        f"{report['memory_within']} of 40, not: {missed or 'none'}"
    )
    return [table]
