"""Forecasts training on the data: each strategy's plan of a random part."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.metrics import dist_ratio
from ...inputs.cost_tables import CostTable, encoder_and_llm
from .strategies import (
    STRATEGIES,
    MicroSteps,
    Plan,
    micro_steps,
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
