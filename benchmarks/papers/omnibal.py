"""OmniBal's tables, from one simulated job (`omnibal_job`) and the planners that it composes."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from counterpoise.sched.planners.stage_split import traffic_bytes
from counterpoise.sched.shapes import Device, Recompute, layer_costs, memory, read_device

from .omnibal_job import (
    A100,
    BUDGETS,
    Batches,
    amounts,
    few_tiles,
    isf_batches,
    make_job,
    planned_batches,
    random_batches,
    table,
)

Ours = dict[str, float]
# Table 9: model, TP, PP, DP.
PAIRS = {
    "6B + Llama3-8B": ("internvit-6b+llama3-8b", 1, 4, 8),
    "6B + InternLM2-20B": ("internvit-6b+internlm2-20b", 2, 4, 4),
    "6B + Yi-34B": ("internvit-6b+yi-34b", 4, 4, 2),
    "6B + Llama3-70B": ("internvit-6b+llama3-70b", 4, 8, 2),
    "6B + Qwen1.5-110B": ("internvit-6b+qwen1.5-110b", 8, 8, 1),
    "EVA-1B + InternLM2-20B": ("eva-clip-1b+internlm2-20b", 2, 4, 4),
    "EVA-4B + InternLM2-20B": ("eva-clip-4b+internlm2-20b", 2, 4, 4),
    "EVA-8B + InternLM2-20B": ("eva-clip-8b+internlm2-20b", 2, 4, 4),
    "EVA-18B + InternLM2-20B": ("eva-clip-18b+internlm2-20b", 4, 4, 4),
}
HEADLINE = PAIRS["6B + InternLM2-20B"]
# Of its stages, as Table 9 has them.
STAGES = (22, 23, 24, 24)
H100 = read_device("h100")
SPLITS = ("parameter", "layer", "profile", "balanced")
# Ranks side by side in DistRatio; the paper does not print them.
RANKS = 8
HARDWARE = {
    "A100, 4 x 200G": A100,
    "A100, 2 x 200G": replace(A100, network_bytes_per_s=A100.network_bytes_per_s // 2),
    "H100, 8 x 400G": H100,
}
SETS = {"LLaVA-665K": "calibrated_665k", "InternVL-1.2M": "calibrated_1200k"}


@cache
def whole(
    data: Path,
    model: str,
    tp: int,
    pp: int,
    dp: int,
    *,
    device: Device = A100,
    name: str = "calibrated_1200k",
    most_tiles: int = 99,
    budgets: tuple[int, int] = BUDGETS,
) -> Ours:
    """Return a job's figures: GPU days part by part, the speed-up, and its mini-batches'."""
    costs = few_tiles(table(data, name), most_tiles)
    job = replace(make_job(model, tp, pp, dp, device), samples=len(costs.costs))
    batches = isf_batches(data, dp, name, most_tiles=most_tiles, budgets=budgets)
    usual, stages = (job.split(method, batches.mean) for method in ("parameter", "balanced"))
    again = job.recompute(stages, budgets)
    before = job.days(random_batches(costs, dp), usual)
    after = job.days(batches, stages, again)
    return {
        "random": before, "+ data": job.days(batches, usual), "+ model": job.days(batches, stages),
        "+ memory": after, "before": before, "after": after, "speed-up": before / after,
        "samples a batch": batches.size, "recomputed": sum(map(len, again)),
        **isf_batches(data, RANKS, name, most_tiles=most_tiles, budgets=budgets).ratios,
    }  # fmt: skip


def _named(begin: str, rows: Ours) -> Ours:
    return {f"{begin}, {name}": value for name, value in rows.items()}


def table_2(data: Path) -> Ours:
    """Return GPU days of both models in a pipeline."""
    found = Ours()
    for name, pair in (("6+20B", HEADLINE), ("6+34B", PAIRS["6B + Yi-34B"])):
        rows = whole(data, *pair)
        found |= _named(name, {"Megatron": rows["before"], "Megatron, balanced": rows["after"]})
    return found


def table_3(data: Path) -> Ours:
    """Return padding, DistRatio and GPU days of four ways to make mini-batches."""
    job = make_job(*HEADLINE)
    found = Ours()
    stages = {name: job.split(name, isf_batches(data, 4).mean) for name in SPLITS}
    ours, wide = (_ways(data, ranks) for ranks in (job.layout.dp, RANKS))
    for name, batches in ours.items():
        rows = {
            "padding": batches.padding,
            "samples a batch": batches.size,
            "GPU days": job.days(batches, stages["parameter"]),
            "GPU days, balanced model": job.days(batches, stages["balanced"]),
        }
        found |= _named(name, rows | wide[name].ratios)
    return found


def _ways(data: Path, ranks: int) -> dict[str, Batches]:
    costs = table(data)
    sorting = {name: planned_batches(costs, name, ranks) for name in ("length", "device")}
    return {"random": random_batches(costs, ranks), **sorting, "ISF": isf_batches(data, ranks)}


def table_4(data: Path) -> Ours:
    """Return GPU days of four splits, and how they differ in layers and bytes."""
    job = make_job(*HEADLINE)
    batches = isf_batches(data, job.layout.dp)
    layers = layer_costs(job.model, job.device, job.layout, amounts(*BUDGETS, BUDGETS[1] ** 2))
    first = traffic_bytes(layers, job.split("parameter", batches.mean))
    found = Ours()
    for method in SPLITS:
        stages = job.split(method, batches.mean)
        rows = {
            "GPU days": job.days(batches, stages),
            "layers": statistics.pstdev(stages),
            "more bytes than parameter, MB": (traffic_bytes(layers, stages) - first) / 1e6,
        }
        found |= _named(method, rows)
    return found


def table_5() -> Ours:
    """Return what is free on each of the paper's stages, all recomputed and as planned."""
    job, found = make_job(*HEADLINE), Ours()
    ways: dict[str, Recompute] = {"all recomputed": "all", "as planned": job.recompute(STAGES)}
    for name, recompute in ways.items():
        cut = replace(job.layout, stages=STAGES, recompute=recompute)
        ranks = memory(job.model, job.device, cut, amounts(*BUDGETS, BUDGETS[1] ** 2))
        free = [(job.device.memory_bytes - rank.total) / 1e9 for rank in ranks]
        found |= {f"{name}, {at}": size for at, size in enumerate(free, 1)}
    return found


def table_6(data: Path) -> Ours:
    """Return DistRatio of ISF with other targets."""
    tiles, tokens = BUDGETS
    targets = {f"Q_t - {less}": (tiles, tokens - less) for less in (64, 128, 256)}
    targets["Q_v - 1, Q_t - 128"] = (tiles - 1, tokens - 128)
    found = Ours()
    for name, target in targets.items():
        found |= _named(name, isf_batches(data, RANKS, targets=target).ratios)
    return found


def _jobs(rows: Mapping[str, Ours]) -> Ours:
    return {
        name: value for begin, row in rows.items() for name, value in _named(begin, row).items()
    }


FIGURES: dict[str, Callable[..., Ours]] = {
    "Table 2": table_2,
    "Table 3": table_3,
    "Table 4": table_4,
    "Table 5": table_5,
    "Table 6": table_6,
    "Table 7": lambda data: whole(data, *HEADLINE),
    "Table 8": lambda data: _jobs({one: whole(data, *HEADLINE, name=SETS[one]) for one in SETS}),
    "Table 9": lambda data: _jobs({one: whole(data, *sizes) for one, sizes in PAIRS.items()}),
    "Table 10": lambda data: _jobs(
        {"1": whole(data, *HEADLINE, most_tiles=1), "4": whole(data, *HEADLINE)}
    ),
    "Table 15": lambda data: _jobs(
        {name: whole(data, *HEADLINE, device=one) for name, one in HARDWARE.items()}
    ),
    "Table 16": lambda data: _jobs(
        {
            f"{32 * dp} GPUs": whole(data, "internvit-6b+llama3-70b", 4, 8, dp, device=H100)
            for dp in (2, 4, 8)
        }
    ),
}
