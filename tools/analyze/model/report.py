"""Makes the report: one JSON object with every number of the page."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.balance import DEFAULTS, Balance
from ....balancer.planning.problem.options import OPTIONS, Accumulate, Mode
from ...inputs.cost_tables import CostTable, encoder_and_llm
from ..scan.rows import Rows
from .alternatives import dispatch_figures, shape_figures
from .budgets import budget_figures, search
from .counts import data_figures, heaviest, over_budget
from .forecast import (
    Forecast,
    gains,
    make_forecast,
    strategy_figures,
    waits_figures,
)
from .pipelines import PipelineMachine, host_figures, pipeline_figures
from .strategies import (
    STRATEGIES,
    Plan,
    check_step,
    micro_steps,
    micro_steps_if_possible,
    with_accumulate_of,
)

Json = dict[str, Any]
Progress = Callable[[str, int, int], object]
STAGES = (
    "searching budgets",
    "planning by each strategy",
    "figures of the plans",
    "pipeline schedules",
)
# Below this gain the advice is not to balance.
LEAVE_OFF = 0.03
# Windows are recommended if they save this much more than exact steps ...
WORTH_A_MODE = 0.02
# ... with steps whose size differs at most this much.
MOST_OTHER_SIZE = 0.2
# Known of samples, but no work to balance.
NOT_PLANNED = ("label_tokens", "nbytes")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of an analysis; mode "auto" and empty budgets: recommend them.

    bytes_as_tokens: samples were measured without their tokenizer.
    """

    plan: Plan
    mode: Mode | Literal["auto"] = "auto"
    budgets: tuple[tuple[str, int], ...] = ()
    part: int = 65_536
    machine: PipelineMachine = field(default_factory=PipelineMachine)
    bytes_as_tokens: bool = False


def make_report(
    rows: Rows, total: int, options: ReportOptions, progress: Progress = lambda *_: None
) -> Json:
    """Return the report; total: samples of the data set, of which the rows may be a sample.

    progress(text, number, of) is called as each stage begins. Raises ValueError if no sample can be
    used, or if no plan can be made with these options.
    """
    if not len(rows):
        first = [f"{one.source}, {one.key:.80}: {one.reason}" for one in rows.failures[:3]]
        raise ValueError(
            f"none of {len(rows.failures)} samples and shards can be used; {'; '.join(first)}"
        )
    chosen = _chosen(rows, options)
    table = _cost_table(rows, chosen)
    machine = options.machine.for_data(table)
    plan = _fit_step(options.plan, len(table.costs))
    check_step(plan)
    given = _given_budgets(table, options)

    def begin(number: int) -> None:
        progress(STAGES[number], number, len(STAGES))

    begin(0)
    candidates = search(table, plan, machine)
    begin(1)
    plan = replace(plan, budgets=given or candidates.best.budgets)
    plan = _with_mode(table, plan, options.mode)
    forecast = make_forecast(table, plan)
    budgets = dict(zip(table.resources, plan.budgets, strict=True))
    report = data_figures(rows, total, over_budget(rows, budgets))
    report["bytes_as_tokens"] = options.bytes_as_tokens and "tokens" in rows.resources
    begin(2)
    report |= _plan_figures(forecast, rows)
    report["budgets"] = budget_figures(candidates, table, machine)
    begin(3)
    report["pipelines"] = pipeline_figures(forecast, machine)
    report["host"] = host_figures(rows, report["pipelines"])
    report["leave_off"] = report["gain"] < LEAVE_OFF
    return report


def _plan_figures(forecast: Forecast, rows: Rows) -> Json:
    """Return the figures of the plans of these rows, the gain and the recommended settings."""
    plan, table = forecast.plan, forecast.table
    figures = strategy_figures(forecast)

    tiles, tokens = encoder_and_llm(rows.resources, rows.costs)
    return {
        "part": {"samples": len(table.costs), "of": len(rows), "seed": plan.seed},
        "plan": {**asdict(plan), "samples_per_step": plan.samples_per_step},
        "waiting": {name: figures[name]["waiting"] for name in STRATEGIES},
        "strategies": figures,
        **gains(forecast),
        "waits": waits_figures(forecast),
        "dispatch": dispatch_figures(forecast),
        "shapes": shape_figures(forecast),
        "recommended": _recommended(table, plan),
        "heaviest": {"samples": heaviest(rows, tiles * plan.tile_tokens + tokens)},
    }


def _chosen(rows: Rows, options: ReportOptions) -> Int64:
    """Return the numbers of the rows that are planned: a random part, in their order."""
    if len(rows) <= options.part:
        return np.arange(len(rows))
    rng = np.random.default_rng(options.plan.seed)
    return np.sort(rng.choice(len(rows), options.part, replace=False))


def _cost_table(rows: Rows, chosen: Int64) -> CostTable:
    """Return what is planned of some rows."""
    planned = tuple(name for name in rows.resources if name not in NOT_PLANNED) or rows.resources
    # Tiles and tokens make up a sample's work; other costs then only describe it.
    if {"tiles", "tokens"} <= set(planned):
        planned = ("tiles", "tokens")
    costs = np.stack([rows.column(name)[chosen] for name in planned], axis=1)
    return CostTable(planned, costs, rows.source_of[chosen])


def _fit_step(plan: Plan, count: int) -> Plan:
    """Return the plan with a smaller step if there are not enough samples for one.

    A step size that was given stays.
    """
    if plan.samples:
        accumulate = max(1, round(plan.samples / (plan.ranks * plan.batch_size)))
        return replace(plan, accumulate=accumulate)
    most = max(1, count // (plan.ranks * plan.batch_size))
    return replace(plan, accumulate=min(plan.accumulate, most))


def _given_budgets(table: CostTable, options: ReportOptions) -> tuple[int, ...]:
    """Return the budgets given, one per resource, () for none; ValueError unless all are named."""
    given = dict(options.budgets)
    if unknown := set(given) - set(table.resources):
        raise ValueError(
            f"--budget {sorted(unknown)[0]}: no such cost; name one of {', '.join(table.resources)}"
        )
    if not given:
        return ()
    if missing := [name for name in table.resources if name not in given]:
        raise ValueError(f"--budget is missing for {missing[0]}; give one for each cost")
    return tuple(given[name] for name in table.resources)


def _with_mode(table: CostTable, plan: Plan, wanted: Mode | Literal["auto"]) -> Plan:
    """Return the plan with its mode: as wanted, or for "auto" exact or window.

    Window needs to save more than WORTH_A_MODE of the time with steps of about the same size.
    """
    if wanted != "auto":
        return replace(plan, mode=wanted)
    exact = micro_steps("balanced", table, plan)
    window = replace(with_accumulate_of(plan, exact), mode="window")
    found = micro_steps_if_possible("balanced", table, window)
    if found is None:
        return plan
    size = float(found.counts.sum()) / found.step_count
    alike = abs(size / plan.samples_per_step - 1) < MOST_OTHER_SIZE
    better = exact.waiting - found.waiting > WORTH_A_MODE
    return window if alike and better else plan


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
