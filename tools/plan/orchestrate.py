"""`counterpoise plan job --only orchestrate`: GPUs, TP, DP and PP of each module."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from ...sched.planners.orchestration.baselines import MEGATRON_STAGES, baselines
from ...sched.planners.orchestration.models import make_modules, read_modules
from ...sched.planners.orchestration.simulated import MEAN, RankedLayout, plan_layouts, rerank
from ...sched.planners.orchestration.units import Module, OrchestrationProblem
from ...sched.shapes import Device
from ..console.reporting import live_progress, make_table
from ..inputs.files import parse_text
from .job_data import draw_costs, read_samples
from .question import Json, PlanAnswer, PlanQuestion

# Layouts that are reported.
KEEP = 5
NAMES = {
    "rigid": "best of one TP and DP",
    "megatron": "Megatron-LM's, widest TP",
    "ratio": "GPUs by operations",
}


def plan_orchestration(question: PlanQuestion) -> PlanAnswer:
    """Place encoder, language model and generator on a cluster (DistTrain, section 5).

    The simulator runs the best plans by the formula; the fastest of them is the answer.
    """
    question.need("gpus", "samples_per_step")
    device = question.gpu
    ways, work = _modules(question, device)
    speed = device.network_bytes_per_s // 10**6
    start = time.perf_counter()
    for modules in ways:
        job = OrchestrationProblem(
            modules, question.gpus or 1, question.samples_per_step or 1, question.limit_bytes(),
            link_mb_per_s=speed,
        )  # fmt: skip
        try:
            best, *next_best = plan_layouts(job, KEEP, work)
            break
        except ValueError:  # nothing fits, or nothing fits with everything recomputed either
            if modules is ways[-1]:
                raise
    milliseconds = 1000 * (time.perf_counter() - start)
    published = MEGATRON_STAGES.get(question.model or "")
    layouts = baselines(job, published)
    usual = {name: rerank(job, [layout], work)[0] for name, layout in layouts.items()}
    answer = _describe_layout(job, best, device)
    report = {
        **{key: answer[key] for key in ("units", "gpus", "seconds_per_iteration", "mfu")},
        "recompute": modules is not ways[0],
        "milliseconds": round(milliseconds, 3),
        "candidates": [answer, *(_describe_layout(job, layout, device) for layout in next_best)],
        "baselines": {
            name: _compare_layout(job, layout, best, device) for name, layout in usual.items()
        },
        "device": device.origin,
    }
    tables = _unit_table(job, report), _candidate_table(job, report), _gain_table(report, published)
    return PlanAnswer(report, tables, lambda: {"version": 1, "units": report["units"]})


def _modules(
    question: PlanQuestion, device: Device
) -> tuple[list[tuple[Module, ...]], dict[str, list[int]]]:
    """Return the modules of the mean sample, and samples' work in thousandths of their times.

    A model's modules also with everything recomputed, for when they do not fit otherwise.
    """
    data, batch, seed = question.data, question.samples_per_step or 1, question.seed
    with live_progress() as progress:
        if question.has_measured("modules"):
            if question.frozen:
                raise ValueError("--model has measured modules: leave out --frozen")
            ways = [parse_text(Path(str(question.model)), read_modules)]
            drawn = draw_costs(data, ("tiles",), batch, seed, progress)[:, 0] if data else None
        else:
            model, drawn = question.read_model(), None
            amounts = model.amounts()
            if data is not None:
                samples = read_samples(data, model, batch, seed, 1, progress)
                amounts = {name: -(-total // batch) for name, total in samples.amounts.items()}
                drawn = samples.images
            ways = [make_modules(model, device, amounts, recompute=way) for way in (False, True)]
    if drawn is None:
        return ways, {}
    if not (mean := float(drawn.mean())):
        raise ValueError("no sample of --data has any images; leave --data out")
    shares = [round(MEAN * work / mean) for work in drawn.tolist()]
    return ways, {module.name: shares for module in ways[0] if module.name != "backbone"}


def _describe_layout(job: OrchestrationProblem, ranked: RankedLayout, device: Device) -> Json:
    names = [module.name for module in job.modules]
    return {
        "units": {
            name: {"gpus": unit.gpus, "tp": unit.tp, "dp": unit.dp, "pp": unit.pp}
            for name, unit in zip(names, ranked.layout.units, strict=True)
        },
        "gpus": ranked.layout.gpus,
        "seconds_by_formula": ranked.layout.formula_ns / 1e9,
        "seconds_per_iteration": ranked.simulated_ns / 1e9,
        "mfu": _mfu(job, ranked, device),
        "memory_gb": {n: size / 1e9 for n, size in zip(names, ranked.memory_bytes, strict=True)},
    }


def _compare_layout(
    job: OrchestrationProblem, ranked: RankedLayout, best: RankedLayout, device: Device
) -> Json:
    """Return a usual layout, and the best one's gain over it, in time and for each GPU."""
    gain = ranked.simulated_ns / best.simulated_ns
    per_gpu = gain * ranked.layout.gpus / best.layout.gpus
    gains = {"gain": round(gain, 3), "gain_per_gpu": round(per_gpu, 3)}
    return _describe_layout(job, ranked, device) | gains


def _mfu(job: OrchestrationProblem, ranked: RankedLayout, device: Device) -> float | None:
    """Return the share of the GPUs' peak that a step uses; None for measured modules."""
    if not all(module.flops for module in job.modules):
        return None
    done = job.batch * sum(module.flops for module in job.modules)
    return done / (ranked.simulated_ns / 1e9 * ranked.layout.gpus * device.flops_per_s)


def _unit_table(job: OrchestrationProblem, report: Json) -> Table:
    title = f"{report['seconds_per_iteration']:.2f} s a step, simulated; modelled costs"
    table = make_table(title, "module", "GPUs", "TP", "DP", "PP", "GB of a GPU")
    held = report["candidates"][0]["memory_gb"]
    for name, unit in report["units"].items():
        room = f"{held[name]:.1f} of {job.memory_bytes / 1e9:.0f}"
        table.add_row(name, *map(str, unit.values()), room)
    return table


def _candidate_table(job: OrchestrationProblem, report: Json) -> Table:
    names = (module.name for module in job.modules)
    columns = (*names, "GPUs", "formula, s", "simulated, s")
    table = make_table("candidates, GPUs as TP x DP x PP", *columns)
    for candidate in report["candidates"]:
        units = ("{tp}x{dp}x{pp}".format_map(unit) for unit in candidate["units"].values())
        times = (candidate[key] for key in ("seconds_by_formula", "seconds_per_iteration"))
        table.add_row(*units, str(candidate["gpus"]), *(f"{seconds:.2f}" for seconds in times))
    return table


def _gain_table(report: Mapping[str, Any], published: int | None) -> Table:
    columns = ("GPUs", "step, s", "MFU", "gain", "gain a GPU")
    table = make_table("Against other layouts, simulated", "layout", *columns)
    if published:
        table.caption = (
            "DistTrain's figures also have its overlapped tensor parallelism (1.15 to 1.17 x at TP "
            "8, Fig. 22) and its order of samples (1.03 to 1.11 x, Fig. 18), which these have not"
        )
    rows = {"this plan": {**report, "gain": 1.0, "gain_per_gpu": 1.0}, **report["baselines"]}
    for name, row in rows.items():
        mfu = f"{row['mfu']:.1%}" if row["mfu"] else "-"
        gains = (f"{row[key]:.2f}" for key in ("gain", "gain_per_gpu"))
        seconds = f"{row['seconds_per_iteration']:.2f}"
        table.add_row(NAMES.get(name, name), str(row["gpus"]), seconds, mfu, *gains)
    return table
