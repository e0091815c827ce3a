"""What training on the data would be like: the figures of plans on a random part of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.balance import Mode
from ....balancer.planning.problem.metrics import dist_ratio
from ...inputs.cost_tables import CostTable
from .machine import SCHEDULES, Model, PipelineMachine, run, shares
from .strategies import (
    COUNTED,
    STRATEGIES,
    Lanes,
    Plan,
    interval,
    lanes,
    lay,
    like,
    shuffle_figures,
    split,
)

Json = dict[str, Any]
Said = Callable[[str], object]
CELLS: tuple[tuple[str, Mode], ...] = (
    ("balanced", "exact"),
    ("balanced", "window"),
    ("isf", "epoch"),
    ("random", "exact"),
    ("length", "exact"),
)
GRID_RANKS = (8, 32, 128)
GRID_ACCUMULATE = (1, 4, 16)
ERRORS = (0.0, 0.05, 0.1, 0.2)
LANES_SIMULATED = 4


@dataclass(frozen=True, slots=True)
class Forecast:
    """The planned part: its table, label tokens (n,), and every strategy's lanes."""

    table: CostTable
    labels: Int64
    plan: Plan
    lanes: dict[str, Lanes]


def forecast(table: CostTable, labels: Int64, plan: Plan) -> Forecast:
    """Plan the part by every strategy."""
    found = {"balanced": lanes("balanced", table, plan, lay("balanced", table, plan))}
    deep = like(plan, found["balanced"])
    for name in STRATEGIES[:-1]:
        one = deep if name == "isf" else plan
        found[name] = lanes(name, table, one, lay(name, table, one))
    return Forecast(table, labels, plan, found)


def grid(table: CostTable, plan: Plan, said: Said) -> list[Json]:
    """Return waiting and DistRatio over ranks, accumulate, mode and strategy.

    A setting that the part holds no two steps of is left out. said(text) is called for each cell.
    """
    cells = list[Json]()
    for ranks in sorted({*GRID_RANKS, plan.ranks}):
        for accumulate in sorted({*GRID_ACCUMULATE, plan.accumulate}):
            here = replace(plan, ranks=ranks, accumulate=accumulate, samples=0)
            if 2 * here.samples_per_step > len(table.costs):
                continue
            said(f"{ranks} ranks, accumulate {accumulate}")
            deep = here
            for name, mode in CELLS:
                one = replace(deep if mode != "exact" else here, mode=mode)
                found = lanes_if_any(name, table, one)
                if found is None:
                    continue
                if (name, mode) == CELLS[0]:
                    deep = like(here, found)
                cells.append(
                    {
                        "ranks": ranks,
                        "accumulate": accumulate,
                        "mode": mode,
                        "strategy": name,
                        "waiting": found.waiting,
                        "interval": interval(found),
                        "dist_ratio": _ratios(table, found),
                    }
                )
    return cells


def lanes_if_any(name: str, table: CostTable, plan: Plan) -> Lanes | None:
    """None where the last, partial step of a small part cannot meet the budgets."""
    try:
        return lanes(name, table, plan, lay(name, table, plan))
    except ValueError:
        return None


def figures(made: Forecast) -> dict[str, Json]:
    """Return every strategy's figures."""
    return {name: _figures(name, made) for name in STRATEGIES}


def _figures(name: str, made: Forecast) -> Json:
    found, table = made.lanes[name], made.table
    tiles = split(table.resources, found.loads)[0]
    some = found.counts > 0
    return {
        "waiting": found.waiting,
        "interval": interval(found),
        "time_per_sample": found.time,
        "dist_ratio": _ratios(table, found),
        "padding": _padding(made, name),
        "no_images": float((tiles[some] == 0).mean()) if some.any() else 0.0,
        "empty": float((~some).mean()),
        "micro_steps": len(found.encoder),
        "steps": len(np.unique(found.step_of)),
        "spread": _spread(made, found),
        **shuffle_figures(table, found),
    }


def _ratios(table: CostTable, found: Lanes) -> Json:
    return {name: dist_ratio(found.loads[..., k]) for k, name in enumerate(table.resources)}


def _padding(made: Forecast, name: str) -> float:
    """Share of places that hold no token if microbatches are padded to their longest sample."""
    lengths = split(made.table.resources, made.table.costs)[1]
    places = sum(int(lengths[list(g)].max()) * len(g) for g in made.lanes[name].groups if g)
    filled = sum(int(lengths[list(g)].sum()) for g in made.lanes[name].groups if g)
    return 1 - filled / places if places else 0.0


def _spread(made: Forecast, found: Lanes) -> Json:
    """Samples, tokens and label tokens of a step: mean, least, most, coefficient of variation."""
    steps = np.unique(found.step_of, return_inverse=True)[1]
    tokens = split(made.table.resources, found.loads)[1].sum(axis=1)
    sums = [int(made.labels[list(group)].sum()) for group in found.groups]
    labels = np.array(sums, np.int64).reshape(found.counts.shape).sum(axis=1)
    columns = {"samples": found.counts.sum(axis=1), "tokens": tokens, "label_tokens": labels}
    report: Json = {}
    for name, column in columns.items():
        values = np.bincount(steps, weights=column)
        mean = float(values.mean())
        report[name] = {
            "mean": mean,
            "min": float(values.min()),
            "max": float(values.max()),
            "cv": float(values.std() / mean) if mean else 0.0,
        }
    return report


def heaviest_microbatches(made: Forecast, name: str, most: int = 20) -> list[Json]:
    """Return the microbatches of most work under a strategy, with the samples in them."""
    found = made.lanes[name]
    work = (found.encoder + found.llm).ravel()
    mean = max(1.0, float(work.mean()))
    top = np.argsort(-work, kind="stable")[:most].tolist()
    loads = found.loads.reshape(-1, found.loads.shape[-1])
    return [
        {
            "samples": len(found.groups[k]),
            **{n: int(v) for n, v in zip(made.table.resources, loads[k], strict=True)},
            "times_mean": float(work[k]) / mean,
            "ordinals": list(found.groups[k])[:8],
        }
        for k in top
    ]


def sensitivity(table: CostTable, plan: Plan) -> list[Json]:
    """Return what happens if costs are known only roughly: planned with errors, run with the truth.

    Every cost is off by a factor drawn evenly from 1 - error to 1 + error.
    """
    rng = np.random.default_rng(plan.seed)
    report = []
    for error in ERRORS:
        factors = rng.uniform(1 - error, 1 + error, table.costs.shape)
        guessed = np.maximum(np.rint(table.costs * factors), 0).astype(np.int64)
        known = CostTable(table.resources, guessed, table.sources)
        found = lanes("balanced", table, plan, lay("balanced", known, plan))
        limits = [2**62 if budget is None else budget for budget in plan.budgets]
        over = (found.loads > np.array(limits)).any(axis=-1)
        beyond = (found.loads / np.array(limits, float)).max(axis=-1)
        report.append(
            {
                "error": error,
                "waiting": found.waiting,
                "over_budget": float(over.mean()),
                "largest_over_budget": float(beyond.max()),
            }
        )
    return report


def pipelines(made: Forecast, model: Model, machine: PipelineMachine) -> Json:
    """Simulate every schedule on the first micro-steps of the random and the balanced plan.

    A step takes as long as the slowest of its ranks; {} without tokens, or with next to none.
    """
    if "tokens" not in made.table.resources:
        return {}
    count = 2 * machine.stages
    held = {name: _holds(made, name, count) for name in ("random", "balanced")}
    if not all(samples for _, samples in held.values()):
        return {}
    rows = []
    for schedule in SCHEDULES:
        row: Json = {"schedule": schedule}
        for name, (ranks, samples) in held.items():
            found = [run(schedule, model, machine, one) for one in ranks]
            slowest = max(timeline.makespan_ns for timeline in found)
            scale = made.plan.ranks / len(ranks)
            row[name] = {
                "milliseconds": slowest / 1e6,
                "samples_per_s": samples * scale / (slowest / 1e9),
                "bubble": float(np.mean([timeline.bubble_ratio for timeline in found])),
                "peak_bytes": max(max(timeline.peak_bytes) for timeline in found),
            }
        rows.append(row)
    typical = {n: _mean(held["balanced"][0], n) for n in ("tiles", "tokens", "token_pairs")}
    return {"microbatches": count, "shares": shares(model, typical), "schedules": rows}


def _holds(made: Forecast, name: str, count: int) -> tuple[list[list[dict[str, int]]], int]:
    """What the first micro-steps hold, by rank, and their samples; in turn if they are few."""
    found = made.lanes[name]
    lengths = split(made.table.resources, made.table.costs)[1]
    ranks = min(found.encoder.shape[1], LANES_SIMULATED)
    rows = np.arange(count) % len(found.encoder)
    tiles = split(made.table.resources, found.loads)[0]
    padded = name in COUNTED and made.plan.layout == "padded"
    by_rank = []
    for rank in range(ranks):
        holds = []
        for row in rows.tolist():
            group = lengths[list(found.groups[row * found.encoder.shape[1] + rank])]
            if padded and len(group):
                group = np.full(len(group), group.max())
            holds.append(
                {
                    "tiles": int(tiles[row, rank]),
                    "tokens": int(found.llm[row, rank]),
                    "token_pairs": int((group**2).sum()),
                }
            )
        by_rank.append(holds)
    return by_rank, int(found.counts[rows][:, :ranks].sum())


def _mean(ranks: list[list[dict[str, int]]], name: str) -> int:
    return int(np.mean([[one[name] for one in rank] for rank in ranks]))
