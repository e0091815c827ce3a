"""Optimus' tables, by the planner of `counterpoise schedule fill` and the bench's two baselines.

Encoders' own collectives are counted, and their copies add at most 12 % of the model states, but
for Table 7, which is the paper's own plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from counterpoise.sched.bubble_filling.choose import PlanScan, scan
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step
from counterpoise.sched.bubble_filling.presets import (
    CASES,
    Case,
    GpuSpec,
    case_setup,
    make_setup,
    tower,
    with_encoder_collectives,
)
from counterpoise.tools.schedule.fill import MOST_COPIES

from ..baselines.joint_pipelines import balanced, megatron
from ..bubbles.published import published_layer, published_report
from ..bubbles.settings import SETTINGS, efficiencies, width_scan

Ours = Mapping[str, float]
# Table 4's layout is not printed: 4 stages of 2 GPUs. NVLink carries what a network does elsewhere.
TABLE_4 = Case("GPT-11B", ("ViT-3B",), 1, 4, 16, 5, tensor=2)
A100 = GpuSpec(312 * 10**12, tensor_bytes_per_s=235 * 10**9, network_bytes_per_s=235 * 10**9)
# Shapes of Table 8 and 9 by the names that they have here.
VITS, LANGUAGES = ("ViT-3B", "ViT-5B", "ViT-11B", "ViT-22B"), ("GPT-11B", "LLAMA-70B", "GPT-175B")


@cache
def best(case: str) -> PlanScan:
    """Return a case's plans of whole kernels."""
    return scan(with_encoder_collectives(case_setup(case)), most_copies=MOST_COPIES)


@cache
def _published() -> Mapping[tuple[str, str], float]:
    return {(row["table"], row["what"]): row["ours"] for row in published_report()["rows"]}


def published(table: str) -> Ours:
    """Return the rows that `make bench NAME=bubbles` prints of a table, by its names."""
    return {
        what.removesuffix(", % of the step").split(" (")[0]: ours
        for (name, what), ours in _published().items()
        if name == table
    }


def figure_16(data: Path | None) -> Ours:
    """Return speed-ups over Megatron-LM, and those with the paper's time of a ViT-22B layer."""
    found = dict(published("Table 6"))
    for case in ("11+5", "22+5", "22+11"):
        setup = published_layer(case_setup(case))
        step = scan(with_encoder_collectives(setup), most_copies=MOST_COPIES).best.filled.step_ns
        found[f"{case}, the paper's layer times"] = megatron(setup).makespan_ns / step
    return found


def table_4(data: Path | None) -> Ours:
    """Return seconds of a step of the small model, on one node without data parallelism."""
    setup = make_setup("Table 4", TABLE_4, A100)
    setup = replace(setup, recompute=False, gather_ns=0, scatter_ns=0)
    return {
        "Megatron-LM": megatron(setup).makespan_ns / 1e9,
        "balanced": balanced(setup).makespan_ns / 1e9,
        "Optimus": scan(setup, splittings=(None,)).best.filled.step_ns / 1e9,
    }


def table_5(data: Path | None) -> Ours:
    """Return seconds and utilisation of three sizes."""
    return {name: value for case in SETTINGS for name, value in _strong(case)}


def _strong(case: str) -> Iterator[tuple[str, float]]:
    setup = case_setup(case)
    steps = {
        "Megatron-LM": megatron(setup).makespan_ns,
        "balanced": balanced(setup).makespan_ns,
        "Optimus": best(case).best.filled.step_ns,
    }
    for name, ns in steps.items():
        yield f"seconds, {case}, {name}", ns / 1e9
        yield f"MFU, %, {case}, {name}", 100 * _flops(case) / (ns / 1e9 * int(case) * 989e12)


def _flops(case: str) -> float:
    """Return the FLOPs of a step, with every forward once more: so the paper counts its MFU."""
    job = CASES[case]
    towers = [tower(name) for name in (job.model, *job.encoders)]
    layers = sum(one.layers * (2 * one.parameters + 4 * 2048 * one.width) for one in towers)
    return 4.0 * layers * job.batch * 2048


def figure_17(data: Path | None) -> Ours:
    """Return the most that the encoders' copies add to the model states, in per cent."""
    return {"overhead, %": max(100 * best(case).best.memory.copies for case in "ABCD")}


def table_7(data: Path | None) -> Ours:
    """Return what the paper's plan hides, coarse and with whole kernels, and planning's seconds."""
    found: dict[str, float] = {}
    for case in SETTINGS:
        setup = case_setup(case)
        shares = efficiencies(setup, host_step(setup, EncoderPlan(2, 8, warmup="reduced")))
        found[f"coarse, {case}"] = 100 * shares.coarse
        found[f"fine, {case}"] = 100 * shares.fine
        found[f"seconds, {case}"] = width_scan(setup)[2]
    return found


def parameters(names: tuple[str, ...]) -> Ours:
    """Return billions of parameters in the layers of models."""
    return {name: tower(name).parameters * tower(name).layers / 1e9 for name in names}


FIGURES = {
    "Table 1": lambda data: published("Table 1"),
    "Figure 15": lambda data: published("Fig. 15"),
    "Table 4": table_4,
    "Table 5": table_5,
    "Figure 16": figure_16,
    "Figure 17": figure_17,
    "Table 7": table_7,
    "Table 8": lambda data: parameters(VITS),
    "Table 9": lambda data: parameters(LANGUAGES),
}
