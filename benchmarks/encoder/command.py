"""`make bench NAME=encoder`: encoders in the bubbles, executed, against plan and simulator."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.console.reporting import emit, progress_console

from ..runtime.rank_processes import RankProcesses
from .cases import CASES, RANKS, EncoderCase
from .drift import DRIFT, measure_drift
from .pipelined import measure_pipelined
from .ranks import EncoderRank, SleptStep
from .travelling import CONTENDERS, PARTS, measure_travelling

Report = dict[str, Any]
_MS = 1_000_000
# How far measured steps and gains may be from simulated ones, and hidden shares from planned ones.
TOLERANCE, POINTS = 0.1, 0.05
# Steps that are drawn with --dispatch.
_DRAWS = 4


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds, after one more.")
@click.option("--microbatches", type=int, multiple=True, help="Only cases of these numbers.")
@click.option(
    "--drift", is_flag=True, help="Only: a stage becomes slower, and the plan is made again."
)
@click.option(
    "--dispatch",
    type=click.Path(path_type=Path),
    help="Only: images travel, in steps drawn from this npz.",
)
@click.option(
    "--stages",
    type=click.Choice(["1", "2", "4"]),
    default="1",
    help="Pipeline ranks, with --dispatch.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def command(
    rounds: int,
    microbatches: tuple[int, ...],
    drift: bool,
    dispatch: Path | None,
    stages: str,
    as_json: bool,
) -> None:
    """Run Optimus' three cases, scaled to 4 ranks, with passes that sleep, on gloo.

    Every round runs the filled schedule, the same with all encoders first, and the language model
    alone. Plans have whole layers between passes (`schedule fill --executable`), or pieces of them
    inside passes, too, which wait for a quarter of their time.

    With --drift one stage takes 1.5 times as long from step 20 on, and a pipeline that plans again
    runs in turn with one that keeps its plan.

    With --dispatch four steps of samples from a file of costs, on 4 ranks with 4 microbatches each,
    whose encoder and language model sleep: what both wait, if whole samples are balanced and if
    images travel. With --stages the ranks are pipelines of so many.

    Example: make bench NAME=encoder ARGS='--microbatches 8 --rounds 3'
    """
    if (dispatch is not None) + drift + bool(microbatches) > 1:
        raise ValueError("--dispatch, --drift and --microbatches are cases apart; give one of them")
    if dispatch is not None and stages != "1":
        report = measure_pipelined(dispatch, _DRAWS, rounds, int(stages))
        emit(report, as_json, pipelined_table(report))
    elif dispatch is not None:
        report = measure_travelling(dispatch, _DRAWS, rounds)
        emit(report, as_json, travelling_table(report))
    elif drift:
        report = measure_drift(DRIFT, rounds)
        emit(report, as_json, drift_table(report))
    else:
        report = measure_filled(microbatches, rounds)
        emit(report, as_json, encoder_table(report))


def measure_filled(microbatches: Sequence[int], rounds: int) -> Report:
    """Return the verdicts of Optimus' cases, or of those with these numbers of microbatches."""
    known = [case.microbatches for case in CASES]
    if wrong := sorted(set(microbatches) - set(known)):
        raise ValueError(f"there is no case of {wrong[0]} microbatches; the cases have {known}")
    chosen = [case for case in CASES if not microbatches or case.microbatches in microbatches]
    found: Report = {}
    with RankProcesses(RANKS, EncoderRank) as ranks:
        for case in chosen:
            progress_console.print(case.name)
            simulated = case.simulated_ns()  # plans here, so that no rank has to
            measured = ranks.call("measure", case, rounds)[0]
            found[case.name] = verdict(case, simulated, measured)
    return {"cases": found, "agrees": all(cell["agrees"] for cell in found.values())}


def drift_table(report: Report) -> Table:
    """Return what planning again has won, simulated and measured."""
    caption = "once, on all ranks at one step, 80 % won" if report["agrees"] else "goals are missed"
    table = Table("", "simulated", "measured", caption=caption)
    pairs = zip(report["simulated_ms"], report["measured_ms"], strict=True)
    for title, pair in zip(("step, plan kept, ms", "step, planned again, ms"), pairs, strict=True):
        table.add_row(title, *map(str, pair))
    table.add_row("won, ms", str(report["can_be_won_ms"]), str(report["won_ms"]))
    table.add_row("share won", "", f"{report['share_won']:.0%}")
    changed = ", ".join(map(str, report["changed_at"])) or "never"
    table.add_row(f"plan changed (drift at {report['start']})", "", changed)
    return table


def travelling_table(report: Report) -> Table:
    """Return what encoder and language model wait, and what is left of it if images travel."""
    caption = "below half is left of both" if report["agrees"] else "more than half is left"
    table = Table("waiting", *CONTENDERS, caption=caption)
    names = {"encoder": "encoder", "llm": "language model"}
    for part in PARTS:
        model = (f"{report['modelled'][name][part]:.1%}" for name in CONTENDERS)
        table.add_row(f"{names[part]}, by costs alone", *model)
        shares = (report["waiting"][name][part] for name in CONTENDERS)
        table.add_row(
            f"{names[part]}, measured", *("{:.1%} ({:.1%}-{:.1%})".format(*s) for s in shares)
        )
        left = (f"{report['left'][name][part][0]:.0%}" for name in CONTENDERS[:-1])
        table.add_row("  left, if images travel", *left)
    steps = (f"{report['waiting'][name]['step_ms'][0]:.0f}" for name in CONTENDERS)
    table.add_row("step, ms", *steps)
    return table


def pipelined_table(report: Report) -> Table:
    """Return what encoder and language model wait in pipelines, and what is left of it."""
    caption = "below half is left of both" if report["agrees"] else "more than half is left"
    table = Table(f"waiting, pp {report['stages']}", "samples", "images", "left", caption=caption)
    for part, title in (("encoder", "encoder"), ("llm", "language model, beyond equal ones")):
        model = (f"{report['modelled'][name][part]:.1%}" for name in ("samples", "images"))
        table.add_row(f"{title}, by costs alone", *model, "")
        shares = (report["waiting"][name][part] for name in ("samples", "images"))
        measured = ("{:.1%} ({:.1%}-{:.1%})".format(*s) for s in shares)
        table.add_row(f"{title}, measured", *measured, f"{report['left'][part][0]:.0%}")
    steps = (f"{report['waiting'][name]['step_ms'][0]:.0f}" for name in ("samples", "images"))
    table.add_row("step, ms", *steps, "")
    return table


def verdict(
    case: EncoderCase, simulated: Mapping[str, int], measured: Mapping[str, Sequence[SleptStep]]
) -> Report:
    """Return what a case shows: steps in ms, hidden shares, gains, and whether all agree.

    The hidden share is 1 - (step - language model alone) / encoder time of a rank. Shares and gains
    are differences of steps, so they are taken within each round, where the machine is the same,
    and the medians are theirs.
    """
    steps = {name: [one.makespan_ns for one in found] for name, found in measured.items()}
    medians = {name: statistics.median(found) for name, found in steps.items()}
    planned = case.planned[1]
    hidden, gained = _by_round(case, steps)
    gains = [simulated["first"] - simulated["filled"], gained]
    ratio = medians["filled"] / simulated["filled"]
    # A plan that gains nothing, as one of a pipeline without gaps, cannot be missed.
    gain_ratio = gains[1] / gains[0] if gains[0] else 1.0
    in_order = all(one.in_order for found in measured.values() for one in found)
    near = abs(ratio - 1) <= TOLERANCE and abs(gain_ratio - 1) <= TOLERANCE
    return {
        "simulated_ms": {name: round(ns / _MS, 1) for name, ns in simulated.items()},
        "measured_ms": {
            name: [round(ns / _MS, 1) for ns in (medians[name], min(found), max(found))]
            for name, found in steps.items()
        },
        "step_ratio": round(ratio, 4),
        "hidden_planned": round(planned, 4),
        "hidden_kernel_level": round(case.kernel_level, 4),
        "hidden_simulated": round(_hidden(case, simulated), 4),
        "hidden_measured": round(hidden, 4),
        "gain_ms": [round(ns / _MS, 1) for ns in gains],
        "gain_ratio": round(gain_ratio, 4),
        "in_order": in_order,
        "agrees": near and in_order and abs(hidden - planned) <= POINTS,
    }


def _by_round(case: EncoderCase, steps: Mapping[str, Sequence[int]]) -> tuple[float, float]:
    """Return the hidden share, and the ns gained over encoders first: medians over rounds."""
    rounds = [dict(zip(steps, times, strict=True)) for times in zip(*steps.values(), strict=True)]
    hidden = statistics.median(_hidden(case, one) for one in rounds)
    return hidden, statistics.median(one["first"] - one["filled"] for one in rounds)


def _hidden(case: EncoderCase, times: Mapping[str, float]) -> float:
    return 1 - (times["filled"] - times["alone"]) / case.encoder_ns


def encoder_table(report: Report) -> Table:
    """Return planned, simulated and measured figures, a column for each case."""
    cells = list(report["cases"].values())
    caption = (
        "steps and gains within 10 %, hidden shares within 5 points, passes as planned"
        if report["agrees"]
        else "they do not agree"
    )
    table = Table("", *report["cases"], caption=caption)
    # Steps first, each measured one with its range; then what follows from them.
    for name, what in (("filled", "step"), ("first", "encoders first"), ("alone", "no encoders")):
        table.add_row(f"{what}, simulated, ms", *(f"{c['simulated_ms'][name]}" for c in cells))
        spreads = (c["measured_ms"][name] for c in cells)
        table.add_row(f"{what}, measured, ms", *("{} ({}-{})".format(*row) for row in spreads))
    for key in ("kernel_level", "planned", "simulated", "measured"):
        title = f"hidden, {key.replace('_', ' ')}"
        table.add_row(title, *(f"{c[f'hidden_{key}']:.1%}" for c in cells))
    table.add_row("shorter, simulated, ms", *(f"{c['gain_ms'][0]}" for c in cells))
    table.add_row("shorter, measured, ms", *(f"{c['gain_ms'][1]}" for c in cells))
    return table
