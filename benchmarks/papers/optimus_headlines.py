"""Optimus' headline tables with what its simulation leaves out: collectives and a memory limit.

Encoders gather parameters and scatter gradients over the network, and their copies add at most 12 %
of the model states (section 4.5). Kernels stay whole, as in the paper. Where a figure differs by
more than a tenth, the cause stands beside it, shown by the same simulation without it.
"""

from dataclasses import replace
from typing import Any

from counterpoise.sched.bubble_filling.choose import scan
from counterpoise.sched.bubble_filling.gaps import find_gaps
from counterpoise.sched.bubble_filling.presets import (
    CASES,
    case_setup,
    fitted_device,
    make_setup,
    with_encoder_collectives,
)
from counterpoise.sched.bubble_filling.setup import FillSetup, Kernel, Stack, total_ns
from counterpoise.sched.bubble_filling.timeline import bubble_causes
from counterpoise.sched.simulation.timeline import Timeline
from counterpoise.tools.schedule.fill import MOST_COPIES

from ..baselines.joint_pipelines import balanced, equal_stages, megatron

# Per cent of the step: all-gather, warm-up, other, tensor, cool-down, reduce-scatter.
TABLE_1 = {"gather": 3.3, "warmup": 5.0, "steady": 8.7, "tensor": 11.2} | {
    "cooldown": 9.2,
    "scatter": 8.9,
}
# Speed-ups: Table 5 over the balanced baseline, Table 6 over Megatron-LM, Figure 15 over both.
TABLE_5 = {"1536": 1.06, "2048": 1.11, "3072": 1.21}
TABLE_6 = {"11+5": 1.25, "22+5": 1.26, "22+11": 1.27}
FIGURE_15 = {"megatron": 1.22, "balanced": 1.18}
# Milliseconds of a ViT-22B layer's forward and backward (section 2.2, with what it recomputes).
PUBLISHED_LAYER_MS = (1.4, 2.0)


def published_rows() -> list[dict[str, Any]]:
    """Return our figure and the paper's for every row, with the cause of what differs."""
    rows = [*_table_5(), *_figure_15(), *_table_6(), *_table_1()]
    for row in rows:
        row["ratio"] = round(row["ours"] / row["theirs"], 3)
    return rows


def _row(table: str, what: str, ours: float, theirs: float, cause: str = "") -> dict[str, Any]:
    return {"table": table, "what": what, "ours": round(ours, 3), "theirs": theirs, "cause": cause}


def _gain(setup: FillSetup, baseline: str) -> float:
    """Return a baseline's step over ours, of the best plan with collectives within the limit."""
    found = scan(with_encoder_collectives(setup), most_copies=MOST_COPIES).best
    usual = balanced(setup) if baseline == "balanced" else megatron(setup)
    return usual.makespan_ns / found.filled.step_ns


def _table_5() -> list[dict[str, Any]]:
    return [
        _row("Table 5", f"over balanced, {name} GPUs", _gain(case_setup(name), "balanced"), paper)
        for name, paper in TABLE_5.items()
    ]


def _figure_15() -> list[dict[str, Any]]:
    rows = []
    for baseline, paper in FIGURE_15.items():
        gains = {name: _gain(case_setup(name), baseline) for name in "ABCD"}
        best = max(gains, key=gains.__getitem__)
        rows.append(_row("Fig. 15", f"over {baseline}, up to (ours: {best})", gains[best], paper))
    return rows


def _table_6() -> list[dict[str, Any]]:
    rows = []
    for name, paper in TABLE_6.items():
        gain, measured = (
            _gain(one, "megatron") for one in (case_setup(name), published_layer(case_setup(name)))
        )
        cause = (
            f"set R's ViT layers take twice the paper's 1.4 and 2.0 ms: with those {measured:.3f}"
        )
        rows.append(_row("Table 6", f"over Megatron-LM, {name}", gain, paper, cause))
    return rows


def published_layer(setup: FillSetup) -> FillSetup:
    """Return a job whose encoder kernels are scaled to the paper's time of a ViT-22B layer."""
    known = case_setup("D").encoders[8][0].layer
    # The paper's backward has the forward again in it; the kernels' backward has not.
    forward_ms, backward_ms = PUBLISHED_LAYER_MS[0], PUBLISHED_LAYER_MS[1] - PUBLISHED_LAYER_MS[0]
    forth = forward_ms * 1e6 / total_ns(known.forward)
    back = backward_ms * 1e6 / total_ns(known.backward)

    def scaled(kernels: tuple[Kernel, ...], by: float) -> tuple[Kernel, ...]:
        return tuple(replace(one, ns=max(1, round(one.ns * by))) for one in kernels)

    def stack(one: Stack) -> Stack:
        layer = one.layer
        forward, backward = scaled(layer.forward, forth), scaled(layer.backward, back)
        return replace(one, layer=replace(layer, forward=forward, backward=backward))

    encoders = {width: tuple(map(stack, row)) for width, row in setup.encoders.items()}
    return replace(setup, encoders=encoders)


def _table_1() -> list[dict[str, Any]]:
    """Return the shares of bubbles in the balanced step of 3,072 GPUs (set T).

    Fitted: kernels at 48 % of the peak. As published: the two collectives. One chunk a rank, since
    with twelve the pipeline's share could not be what Table 1 says.
    """
    machine = fitted_device(480, 300 * 10**9)
    setup = make_setup("table 1", replace(CASES["3072"], chunks=1), machine)
    setup = replace(setup, recompute=False, gather_ns=167 * 10**6, scatter_ns=458 * 10**6)
    found, mean = (_shares(setup, one(setup)) for one in (balanced, equal_stages))
    pipeline = sum(mean[name] for name in ("warmup", "steady", "cooldown"))
    cause = (
        f"8 equal stages wait {pipeline:.1f} % of a step of 16 microbatches; the paper's three "
        "rows are 22.9 together, of a job that it does not describe"
    )
    return [
        _row("Table 1", f"{name}, % of the step", found[name], paper, cause * (name == "steady"))
        for name, paper in TABLE_1.items()
    ]


def _shares(setup: FillSetup, step: Timeline) -> dict[str, float]:
    """Return the per cent of a step that each cause of bubbles takes, the mean of the ranks."""
    layer = setup.model.layer
    gaps = find_gaps(step, {"F": layer.forward, "B": layer.backward})
    rows = bubble_causes(gaps, step)
    whole = step.makespan_ns * len(rows)
    return {name: 100 * sum(row[f"{name}_ns"] for row in rows) / whole for name in TABLE_1}
