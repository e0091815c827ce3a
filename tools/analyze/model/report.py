"""The whole report as one JSON object; every number on the page stands in it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.balance import (
    DEFAULTS,
    OPTIONS,
    Accumulate,
    Balance,
    Mode,
)
from ....balancer.planning.problem.metrics import TILE_TOKENS
from ....balancer.planning.warmup import compile_kernels
from ...inputs.cost_tables import CostTable
from ..scan.rows import Rows
from .budgets import BudgetCandidate, every_kth, frontier, search
from .counts import (
    NAMED,
    by_source,
    duplicates,
    failures,
    heaviest,
    joint,
    quantiles,
    reasons,
    share_interval,
)
from .forecast import (
    Forecast,
    figures,
    forecast,
    grid,
    heaviest_microbatches,
    lanes_if_any,
    pipelines,
    sensitivity,
)
from .machine import MODELS, Model, PipelineMachine, peak_bytes
from .strategies import STRATEGIES, Plan, interval, lanes, lay, like, split

Json = dict[str, Any]
Said = Callable[[str], object]
LEAVE_OFF = 0.03
WORTH_A_MODE = 0.02
MOST_OTHER_SIZE = 0.2
GRID_PART = 32_768
NOT_PLANNED = ("label_tokens", "nbytes")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the analysis was asked for. mode "auto" and empty budgets are to be recommended."""

    plan: Plan
    mode: Mode | Literal["auto"] = "auto"
    budgets: tuple[tuple[str, int], ...] = ()
    part: int = 65_536
    model: str = "6b+20b"
    machine: PipelineMachine = field(default_factory=PipelineMachine)


def quiet(_: str) -> None:
    """Say nothing."""


def make_report(rows: Rows, total: int, asked: ReportOptions, said: Said = quiet) -> Json:
    """Return the report; total: samples of the data set, of which the rows may be a sample.

    Raises ValueError where no sample can be used, and where a plan cannot be made as asked.
    """
    if not len(rows):
        first = [f"{one.key}: {one.reason}" for one in rows.failures[:3]]
        raise ValueError(
            f"none of {len(rows.failures)} samples and shards can be used; {'; '.join(first)}"
        )
    model = MODELS[asked.model]
    table, labels, chosen = _part(rows, asked)
    compile_kernels("pack", "isf", "shuffle", "assign")
    said("searching budgets")
    plan, given = _sized(asked.plan, len(table.costs)), _given(table, asked)
    paper, best, tried = search(table, plan, model, asked.machine)
    budgets = given or best.budgets
    plan = replace(plan, budgets=budgets)
    said("planning")
    plan = _with_mode(table, plan, asked.mode)
    made = forecast(table, labels, plan)
    by_strategy = figures(made)
    again, over = duplicates(rows), _over(rows, table.resources, budgets)
    whole = len(rows) + len(rows.failures) == total
    report: Json = {
        "samples": total,
        "analyzed": len(rows) + len(rows.failures),
        "usable": len(rows),
        "unreadable": len(rows.failures),
        "unreadable_interval": share_interval(len(rows.failures), len(rows) + len(rows.failures)),
        "truncated": sum(one.kind == "truncated" for one in rows.failures),
        "duplicate_keys": len(again),
        "duplicates": [rows.key(row) for row in again[:NAMED].tolist()],
        "over_budget": len(over),
        "sources": by_source(rows, again, over),
        "failures": failures(rows),
        "reasons": reasons(rows),
        "resources": quantiles(rows, whole),
        "joint": joint(rows),
        "part": {"samples": len(table.costs), "of": len(rows), "seed": plan.seed},
        "plan": {**asdict(plan), "samples_per_step": plan.samples_per_step},
        "waiting": {name: by_strategy[name]["waiting"] for name in STRATEGIES},
        "strategies": by_strategy,
        **_gains(made),
        "recommended": _recommended(table, plan),
        "budgets": _budgets(table, paper, best, tried, model, asked),
        "heaviest": {
            "samples": heaviest(rows, _work(rows, plan)),
            "microbatches": {n: _named(made, n, rows, chosen) for n in ("random", "balanced")},
        },
    }
    said("the grid over ranks and accumulate")
    some = every_kth(table, GRID_PART)
    report["grid"] = {"samples": len(some.costs), "cells": grid(some, plan, said)}
    said("errors of costs")
    report["sensitivity"] = sensitivity(some, plan)
    said("pipeline schedules")
    report["pipelines"] = pipelines(made, model, asked.machine)
    report["host"] = _host(rows, report)
    report["leave_off"] = report["gain"] < LEAVE_OFF
    return report


def _part(rows: Rows, asked: ReportOptions) -> tuple[CostTable, Int64, Int64]:
    """A random part of the rows, in their order: its table, label tokens, and row numbers."""
    chosen = np.arange(len(rows))
    if len(rows) > asked.part:
        drawn = np.random.default_rng(asked.plan.seed).choice(len(rows), asked.part, replace=False)
        chosen = np.sort(drawn)
    planned = tuple(name for name in rows.resources if name not in NOT_PLANNED) or rows.resources
    if {"tiles", "tokens"} <= set(planned):
        planned = ("tiles", "tokens")
    costs = np.stack([rows.column(name)[chosen] for name in planned], axis=1)
    return (
        CostTable(planned, costs, rows.source_of[chosen]),
        rows.column("label_tokens")[chosen],
        chosen,
    )


def _sized(plan: Plan, count: int) -> Plan:
    """The plan, with a smaller step where the data do not fill one; a given size stays."""
    if plan.samples:
        deep = max(1, round(plan.samples / (plan.ranks * plan.batch_size)))
        return replace(plan, accumulate=deep)
    accumulate = plan.accumulate
    while accumulate > 1 and plan.ranks * accumulate * plan.batch_size > count:
        accumulate -= 1
    return replace(plan, accumulate=accumulate)


def _given(table: CostTable, asked: ReportOptions) -> tuple[int, ...]:
    """The budgets asked for, one a resource; () for none. ValueError for a name unknown."""
    given = dict(asked.budgets)
    if unknown := set(given) - set(table.resources):
        raise ValueError(
            f"--budget {sorted(unknown)[0]}: no such cost; there are {', '.join(table.resources)}"
        )
    if not given:
        return ()
    if missing := [name for name in table.resources if name not in given]:
        raise ValueError(f"--budget says nothing of {missing[0]}; give one for each cost")
    return tuple(given[name] for name in table.resources)


def _with_mode(table: CostTable, plan: Plan, wanted: Mode | Literal["auto"]) -> Plan:
    """Exact steps, unless windows of as many microbatches save more than WORTH_A_MODE of the time.

    Windows that would make much smaller or larger steps than asked for are not considered.
    """
    if wanted != "auto":
        return replace(plan, mode=wanted)
    exact = lanes("balanced", table, plan, lay("balanced", table, plan))
    window = replace(like(plan, exact), mode="window")
    found = lanes_if_any("balanced", table, window)
    if found is None:
        return plan
    size = float(found.counts.sum()) / len(np.unique(found.step_of))
    alike = abs(size / plan.samples_per_step - 1) < MOST_OTHER_SIZE
    better = exact.waiting - found.waiting > WORTH_A_MODE
    return window if alike and better else plan


def _over(rows: Rows, resources: tuple[str, ...], budgets: tuple[int | None, ...]) -> Int64:
    over = np.zeros(len(rows), bool)
    for name, budget in zip(resources, budgets, strict=True):
        if budget is not None:
            over |= rows.column(name) > budget
    return np.flatnonzero(over)


def _work(rows: Rows, plan: Plan) -> Int64:
    tiles, tokens = split(rows.resources, rows.costs)
    return tiles * plan.tile_tokens + tokens


def _gains(made: Forecast) -> Json:
    """Shares of the step's time: waiting that goes, and padding that goes besides.

    A sample takes random.time now and balanced.time then; of both a share is waiting.
    """
    now, then = made.lanes["random"], made.lanes["balanced"]
    waited = now.waiting * now.time - then.waiting * then.time
    whole = now.time or 1.0
    saved = 1 - then.time / whole
    return {
        "gain": waited / whole,
        "gain_interval": interval(now) + interval(then),
        "gain_padding": saved - waited / whole,
        "gain_total": saved,
    }


def _recommended(table: CostTable, plan: Plan) -> Json:
    """Return the Balance to train with: as its JSON object, and as code to paste."""
    budgets = zip(table.resources, plan.budgets, strict=True)
    accumulate: Accumulate = "auto" if plan.mode == "exact" else plan.accumulate
    balance = Balance(
        budgets={name: most for name, most in budgets if most is not None},
        samples_per_step=plan.samples_per_step,
        accumulate=accumulate,
        mode=plan.mode,
        seed=plan.seed,
        layout="packed",
    )
    code = _code(balance)
    return {
        "balance": json.loads(balance.to_json()),
        "code": code,
        "settings": f"from counterpoise.loader import Balance, DataLoader\n\nbalance = {code}\n"
        "loader = DataLoader(dataset, num_workers=8, shuffle=True, balance=balance)\n",
    }


def _code(balance: Balance) -> str:
    """Return the balance as an expression, an option a line, in double quotes."""
    options = (
        f"    {name}={json.dumps(value, ensure_ascii=False)},\n"
        for name, value in json.loads(balance.to_json()).items()
        if name in OPTIONS and value != getattr(DEFAULTS, name)
    )
    return f"Balance(\n{''.join(options)})"


def _budgets(
    table: CostTable,
    paper: BudgetCandidate,
    best: BudgetCandidate,
    tried: tuple[BudgetCandidate, ...],
    model: Model,
    asked: ReportOptions,
) -> Json:
    most = max(max(one.budgets[_tokens(table)] for one in tried if one.fits or one is paper), 1)
    return {
        "resources": list(table.resources),
        "omnibal": asdict(paper),
        "searched": asdict(best),
        "tried": [asdict(one) for one in tried],
        "frontier": frontier(table, model, asked.machine, round(1.25 * most)),
        "heaviest_sample_bytes": _alone(table, model, asked.machine),
        "model": model.name,
        "machine": asdict(asked.machine),
    }


def _alone(table: CostTable, model: Model, machine: PipelineMachine) -> int | None:
    """The most that one sample needs by itself."""
    if not {"tiles", "tokens"} <= set(table.resources):
        return None
    pairs = np.unique(np.stack([table.column("tiles"), table.column("tokens")], axis=1), axis=0)
    worst = pairs[np.argsort(pairs[:, 0] * 4 * TILE_TOKENS + pairs[:, 1])[-1]]
    return peak_bytes(model, machine, int(worst[0]), int(worst[1]))


def _tokens(table: CostTable) -> int:
    return table.resources.index("tokens") if "tokens" in table.resources else 0


def _named(made: Forecast, name: str, rows: Rows, chosen: Int64) -> list[Json]:
    found = heaviest_microbatches(made, name)
    for one in found:
        one["keys"] = [rows.key(int(chosen[k])) for k in one.pop("ordinals")]
    return found


def _host(rows: Rows, report: Json) -> Json:
    """CPU time and bytes of a sample, and what a step's speed asks of workers and network."""
    times = rows.cpu_times
    known = rows.nbytes[rows.nbytes >= 0]
    found: Json = {
        "probed": times.probed,
        "probe_ms": times.probe_ns / times.probed / 1e6 if times.probed else None,
        "decoded": times.decoded,
        "decode_ms": times.decode_ns / times.decoded / 1e6 if times.decoded else None,
        "bytes_per_sample": float(known.mean()) if len(known) else None,
    }
    schedules = report["pipelines"].get("schedules", [])
    rates = [one["balanced"]["samples_per_s"] for one in schedules if one["schedule"] == "1f1b"]
    if rates:
        found["samples_per_s"] = rates[0]
        if found["decode_ms"] is not None:
            found["workers"] = rates[0] * found["decode_ms"] / 1000
        if found["bytes_per_sample"] is not None:
            found["bytes_per_s"] = rates[0] * found["bytes_per_sample"]
    return found
