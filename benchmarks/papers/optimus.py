"""Optimus' tables, by the planner of `counterpoise schedule fill` and the bench's two baselines."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from counterpoise.sched.bubble_filling.choose import PlanScan, fitting, scan
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step
from counterpoise.sched.bubble_filling.gaps import GATHER, SCATTER
from counterpoise.sched.bubble_filling.presets import (
    CASES,
    Case,
    GpuSpec,
    case_setup,
    make_setup,
    tower,
)
from counterpoise.sched.bubble_filling.setup import FillSetup, Stack
from counterpoise.sched.simulation.timeline import Timeline

from ..baselines.joint_pipelines import balanced, megatron
from ..bubbles.settings import SETTINGS, efficiencies, width_scan

Ours = Mapping[str, float]
WEAK, ENCODERS = ("A", "B", "C", "D"), ("11+5", "22+5", "22+11")
# Table 1's job is another one: nothing recomputed, one chunk a rank, both collectives as printed.
TABLE_1 = Case("GPT-175B", ("ViT-22B",), 48, 8, 1536, 1)
COLLECTIVES_NS = 167_000_000, 458_000_000
# Table 4's layout is not printed: 4 stages of 2 GPUs. NVLink carries what a network does elsewhere.
TABLE_4 = Case("GPT-11B", ("ViT-3B",), 1, 4, 16, 5, tensor=2)
A100 = GpuSpec(312 * 10**12, tensor_bytes_per_s=235 * 10**9, network_bytes_per_s=235 * 10**9)
# Shapes of Table 8 and 9 by the names that they have here.
VITS, LANGUAGES = ("ViT-3B", "ViT-5B", "ViT-11B", "ViT-22B"), ("GPT-11B", "LLAMA-70B", "GPT-175B")


@cache
def best(case: str) -> PlanScan:
    """Return all plans of a case, kernels split or whole, as `schedule fill` chooses from them."""
    setup = case_setup(case)
    return scan(setup, splittings=(None, *fitting(setup)))


def table_1(data: Path | None) -> Ours:
    """Return the shares of each kind of bubble in a step of balanced stages."""
    setup = make_setup("Table 1", TABLE_1, GpuSpec(efficiency_permille=480))
    setup = replace(setup, recompute=False, gather_ns=COLLECTIVES_NS[0], scatter_ns=COLLECTIVES_NS[1])
    timeline = balanced(setup)
    stacks = (setup.model, *setup.encoder_stacks(setup.tensor))
    waits = {name: 100 * ns / timeline.makespan_ns for name, ns in _waits(timeline).items()}
    exposed = sum(map(_collective_ns, stacks)) * setup.microbatches / setup.stages
    return {
        "step, s": timeline.makespan_ns / 1e9,
        "tensor-parallel": 100 * exposed / timeline.makespan_ns,
        **waits,
    }


def _collective_ns(stack: Stack) -> int:
    kernels = stack.layer.forward + stack.layer.backward_kernels(False)
    return stack.layers * sum(one.ns for one in kernels if one.resource == "communication")


def _waits(timeline: Timeline) -> dict[str, float]:
    """Return the mean over ranks of what they wait for, in ns."""
    rows: list[dict[str, float]] = []
    for row in timeline.ranks:
        gather, scatter = (
            next(slot for slot in row if slot.what.kind == kind) for kind in (GATHER, SCATTER)
        )
        passes = [slot for slot in row if slot.what.kind not in (GATHER, SCATTER)]
        busy = sum(slot.end_ns - slot.start_ns for slot in passes)
        rows.append(
            {
                "all-gather": gather.end_ns - gather.start_ns,
                "warm-up": passes[0].start_ns - gather.end_ns,
                "other pipeline": passes[-1].end_ns - passes[0].start_ns - busy,
                "cool-down": timeline.makespan_ns - scatter.end_ns,
                "reduce-scatter": scatter.end_ns - scatter.start_ns,
            }
        )
    return {name: fmean(row[name] for row in rows) for name in rows[0]}


def figure_15(data: Path | None) -> Ours:
    """Return the largest speed-ups over both baselines, of four jobs."""
    rows = [(_step_ns(case), case_setup(case)) for case in WEAK]
    return {
        "over Megatron-LM": max(megatron(setup).makespan_ns / ns for ns, setup in rows),
        "over balanced": max(balanced(setup).makespan_ns / ns for ns, setup in rows),
    }


def figure_16(data: Path | None) -> Ours:
    """Return the speed-ups over Megatron-LM with two encoders."""
    return {case: megatron(case_setup(case)).makespan_ns / _step_ns(case) for case in ENCODERS}


def _step_ns(case: str) -> int:
    return best(case).best.filled.step_ns


def table_4(data: Path | None) -> Ours:
    """Return seconds of a step of the small model."""
    setup = make_setup("Table 4", TABLE_4, A100)
    setup = replace(setup, recompute=False, gather_ns=0, scatter_ns=0)
    return {
        "Megatron-LM": megatron(setup).makespan_ns / 1e9,
        "balanced": balanced(setup).makespan_ns / 1e9,
        "Optimus": scan(setup, splittings=(None,)).best.filled.step_ns / 1e9,
    }


def table_5(data: Path | None) -> Ours:
    """Return seconds and utilisation of three sizes; kernels are whole, as the paper's are."""
    return {name: value for case in SETTINGS for name, value in _strong(case)}


def _strong(case: str) -> Iterator[tuple[str, float]]:
    setup = case_setup(case)
    whole, _, _ = width_scan(setup)
    steps = {
        "Megatron-LM": megatron(setup).makespan_ns,
        "balanced": balanced(setup).makespan_ns,
        "Optimus": next(one for one in whole.chosen if one.plan.stages == 2).filled.step_ns,
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
    """Return the most memory that the chosen plans add, in per cent."""
    return {"overhead, %": max(100 * _overhead(case) for case in WEAK)}


def _overhead(case: str) -> float:
    chosen = best(case).best
    held = max(len(pipeline.microbatches) for pipeline in chosen.filled.pipelines)
    need = chosen.memory
    return (need.states + held * need.per_microbatch) / need.model


def table_7(data: Path | None) -> Ours:
    """Return what the paper's plan hides, coarse and with whole kernels, and planning's seconds."""
    found: dict[str, float] = {}
    for case in SETTINGS:
        setup: FillSetup = case_setup(case)
        shares = efficiencies(setup, host_step(setup, EncoderPlan(2, 8, warmup="reduced")))
        found[f"coarse, {case}"] = 100 * shares.coarse
        found[f"fine, {case}"] = 100 * shares.fine
        found[f"seconds, {case}"] = width_scan(setup)[2]
    return found


def parameters(names: tuple[str, ...]) -> Ours:
    """Return billions of parameters in the layers of models."""
    return {name: tower(name).parameters * tower(name).layers / 1e9 for name in names}


FIGURES = {
    "Table 1": table_1,
    "Figure 15": figure_15,
    "Table 4": table_4,
    "Table 5": table_5,
    "Figure 16": figure_16,
    "Figure 17": figure_17,
    "Table 7": table_7,
    "Table 8": lambda data: parameters(VITS),
    "Table 9": lambda data: parameters(LANGUAGES),
}
