"""Forecasts training on the data: each strategy's plan of a random part, and sweeps of settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.metrics import dist_ratio
from ....balancer.planning.problem.options import Mode
from ...inputs.cost_tables import CostTable, encoder_and_llm
from .strategies import (
    STRATEGIES,
    MicroSteps,
    Plan,
    micro_steps,
    micro_steps_if_possible,
    shuffle_figures,
    waiting_interval,
    with_accumulate_of,
)

Json = dict[str, Any]
# Steps whose size differs by more than this share are not comparable: see _figures.
MOST_OTHER_SIZE = 0.1


@dataclass(frozen=True, slots=True)
class Forecast:
    """The planned part: its table, label tokens (n,), and the micro-steps of every strategy."""

    table: CostTable
    labels: Int64
    plan: Plan
    steps: dict[str, MicroSteps]


def make_forecast(table: CostTable, labels: Int64, plan: Plan) -> Forecast:
    """Plan the part by every strategy."""
    balanced = micro_steps("balanced", table, plan)
    # isf must be told how many microbatches to make; it gets as many as the budgets made.
    plans = {"random": plan, "length": plan, "isf": with_accumulate_of(plan, balanced)}
    found = {name: micro_steps(name, table, each) for name, each in plans.items()}
    return Forecast(table, labels, plan, {**found, "balanced": balanced})


def strategy_figures(forecast: Forecast) -> dict[str, Json]:
    """Return the figures of every strategy."""
    return {name: _figures(name, forecast) for name in STRATEGIES}


def gains(forecast: Forecast) -> Json:
    """Return the shares of the step's time that are saved: waiting, and padding besides.

    A sample takes random.time now and balanced.time with the plan; a share of both is waiting.
    """
    now, planned = forecast.steps["random"], forecast.steps["balanced"]
    total = now.time or 1.0
    waiting = (now.waiting * now.time - planned.waiting * planned.time) / total
    saved = 1 - planned.time / total
    return {
        "gain": waiting,
        "gain_interval": waiting_interval(now) + waiting_interval(planned),
        "gain_padding": saved - waiting,
        "gain_total": saved,
    }


def waits_figures(forecast: Forecast) -> Json:
    """Return the waiting of each plan in each kind of loop: of random, and of both for `waits`.

    Of every plan {"microbatch": share, "step": share}: if ranks wait for each other after every
    microbatch, and if they meet once a step.
    """
    once = replace(forecast.plan, waits="step")
    plans = {
        "random": forecast.steps["random"],
        "microbatch": forecast.steps["balanced"],
        "step": micro_steps("balanced", forecast.table, once),
    }
    return {
        name: {"microbatch": found.waiting, "step": found.waiting_once}
        for name, found in plans.items()
    }


def heaviest_microbatches(
    forecast: Forecast, name: str, key_of: Callable[[int], str], most: int = 20
) -> list[Json]:
    """Return a strategy's microbatches of most work; key_of: the key of a sample of the part."""
    found = forecast.steps[name]
    work = (found.encoder + found.llm).ravel()
    mean = max(1.0, float(work.mean()))
    top = np.argsort(-work, kind="stable")[:most].tolist()
    loads = found.loads.reshape(-1, found.loads.shape[-1])
    return [
        {
            "samples": len(found.groups[k]),
            **{n: int(v) for n, v in zip(forecast.table.resources, loads[k], strict=True)},
            "times_mean": float(work[k]) / mean,
            "keys": [key_of(sample) for sample in found.groups[k][:8]],
        }
        for k in top
    ]


def dist_ratios(table: CostTable, found: MicroSteps) -> Json:
    """Return DistRatio of each resource."""
    return {name: dist_ratio(found.loads[..., k]) for k, name in enumerate(table.resources)}


def _figures(name: str, forecast: Forecast) -> Json:
    found, table = forecast.steps[name], forecast.table
    tiles = encoder_and_llm(table.resources, found.loads)[0]
    some = found.counts > 0
    # isf fills microbatches as full as budgets let it, so loose ones make larger steps, in which
    # ranks wait less by themselves: its figures are those of another training.
    size = float(found.counts.sum()) / found.step_count
    return {
        "waiting": found.waiting,
        "interval": waiting_interval(found),
        "time_per_sample": found.time,
        "dist_ratio": dist_ratios(table, found),
        "padding": _padding(forecast, name),
        "no_images": float((tiles[some] == 0).mean()) if some.any() else 0.0,
        "empty": float((~some).mean()),
        "micro_steps": len(found.encoder),
        "steps": found.step_count,
        "samples_per_step": size,
        "other_size": abs(size / forecast.plan.samples_per_step - 1) > MOST_OTHER_SIZE,
        "spread": _spread(forecast, found),
        **shuffle_figures(table, found),
    }


def _padding(forecast: Forecast, name: str) -> float:
    """Return the share of padding if microbatches are padded to their longest sample."""
    lengths = encoder_and_llm(forecast.table.resources, forecast.table.costs)[1]
    places = sum(int(lengths[list(g)].max()) * len(g) for g in forecast.steps[name].groups if g)
    filled = sum(int(lengths[list(g)].sum()) for g in forecast.steps[name].groups if g)
    return 1 - filled / places if places else 0.0


def _spread(forecast: Forecast, found: MicroSteps) -> Json:
    """Return mean, min, max and coefficient of variation of a step's samples and tokens."""
    tokens = encoder_and_llm(forecast.table.resources, found.loads)[1].sum(axis=1)
    sums = [int(forecast.labels[list(group)].sum()) for group in found.groups]
    labels = np.array(sums, np.int64).reshape(found.counts.shape).sum(axis=1)
    columns = {"samples": found.counts.sum(axis=1), "tokens": tokens, "label_tokens": labels}
    report: Json = {}
    for name, column in columns.items():
        values = found.per_step(column)
        mean = float(values.mean())
        report[name] = {
            "mean": mean,
            "min": float(values.min()),
            "max": float(values.max()),
            "cv": float(values.std() / mean) if mean else 0.0,
        }
    return report


Progress = Callable[[str], object]
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
UNLIMITED = 2**62


def grid_settings(table: CostTable, plan: Plan) -> list[Plan]:
    """Return the plan for other ranks and accumulate, where samples suffice for two steps."""
    made = (
        replace(plan, ranks=ranks, accumulate=accumulate, samples=0)
        for ranks in sorted({*GRID_RANKS, plan.ranks})
        for accumulate in sorted({*GRID_ACCUMULATE, plan.accumulate})
    )
    return [each for each in made if 2 * each.samples_per_step <= len(table.costs)]


def grid(table: CostTable, settings: Sequence[Plan], progress: Progress) -> list[Json]:
    """Return waiting and DistRatio of some settings, by mode and strategy.

    progress(text) is called for each setting.
    """
    cells = list[Json]()
    for setting in settings:
        progress(f"{setting.ranks} ranks, accumulate {setting.accumulate}")
        cells += _cells(table, setting)
    return cells


def sensitivity(table: CostTable, plan: Plan) -> list[Json]:
    """Return waiting and budget overruns if the plan is made from inexact costs.

    Each cost is multiplied by a factor drawn evenly from 1 - error to 1 + error for planning; the
    figures come from the true costs.
    """
    rng = np.random.default_rng(plan.seed)
    limits = np.array([UNLIMITED if budget is None else budget for budget in plan.budgets])
    report = []
    for error in ERRORS:
        factors = rng.uniform(1 - error, 1 + error, table.costs.shape)
        inexact = np.maximum(np.rint(table.costs * factors), 0).astype(np.int64)
        known = CostTable(table.resources, inexact, table.sources)
        found = micro_steps("balanced", table, plan, known=known)
        report.append(
            {
                "error": error,
                "waiting": found.waiting,
                "over_budget": float((found.loads > limits).any(axis=-1).mean()),
                "largest_over_budget": float((found.loads / limits.astype(float)).max()),
            }
        )
    return report


def _cells(table: CostTable, setting: Plan) -> list[Json]:
    """Return the cells of one setting, for each strategy and mode that can be planned."""
    cells, budgeted = list[Json](), setting
    for name, mode in CELLS:
        plan = replace(budgeted if mode != "exact" else setting, mode=mode)
        found = micro_steps_if_possible(name, table, plan)
        if found is None:
            continue
        # The first cell says how many microbatches the budgets make; other modes get as many.
        if (name, mode) == CELLS[0]:
            budgeted = with_accumulate_of(setting, found)
        cells.append(
            {
                "ranks": setting.ranks,
                "accumulate": setting.accumulate,
                "mode": mode,
                "strategy": name,
                "waiting": found.waiting,
                "interval": waiting_interval(found),
                "dist_ratio": dist_ratios(table, found),
            }
        )
    return cells
