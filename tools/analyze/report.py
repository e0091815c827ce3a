"""Makes the report: one JSON object with every number of the page."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from ...balancer.planning.forecast import sample_work
from ...balancer.planning.problem.balance import DEFAULTS, Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import ADD_UP, ENCODER, NO_WORK
from ...balancer.planning.problem.shuffle import permutation
from ...balancer.planning.problem.values import Images
from ...loader.auto.choice import Choice, PlanTerms
from .counts import data_figures, heaviest
from .plans import KnownCosts
from .scan.rows import Rows

Json = dict[str, Any]
# The first samples of epoch 0's order: so many are planned.
PLANNED = 32_768
# Below this gain the advice is not to balance.
LEAVE_OFF = 0.03
# Budgets above the largest microbatch of the steps that were planned: other steps have others.
HEADROOM_PERCENT = 110


@dataclass(frozen=True, slots=True)
class LoopNow:
    """A training loop as it is: `accumulate` microbatches of batch_size samples a step and rank.

    layout: whether samples of a microbatch are padded to its longest, or packed.
    """

    ranks: int = 8
    accumulate: int = 4
    batch_size: int = 4
    layout: Literal["padded", "packed"] = "padded"

    @property
    def samples_per_step(self) -> int:
        """Return the samples of a global batch."""
        return self.ranks * self.accumulate * self.batch_size


def make_report(rows: Rows, total: int, loop: LoopNow, budgets: Mapping[str, int]) -> Json:
    """Return the report; total: samples of the data set, of which the rows may be a sample.

    budgets: of microbatches, recommended where none is given. Raises ValueError if no sample can be
    used, or if no plan can be made with these options.
    """
    if not len(rows):
        failures = rows.failures
        first = [f"{failed.source}, {failed.key:.80}: {failed.reason}" for failed in failures[:3]]
        raise ValueError(
            f"none of {len(failures)} samples and shards can be used; {'; '.join(first)}"
        )
    if unknown := set(budgets) - set(rows.resources):
        raise ValueError(
            f"--budget {sorted(unknown)[0]}: no such cost; name one of {', '.join(rows.resources)}"
        )
    known = _known_costs(rows, loop)
    balance = _recommend_balance(known, loop, budgets)
    forecast = known.compare(_make_config(balance, rows.resources, loop))
    gain = 1 - forecast.time if forecast else 0.0
    work = np.sum(sample_work(known.now, rows.costs), axis=0)
    return {
        **data_figures(rows, total, balance.budgets),
        "settings": {**asdict(loop), "samples_per_step": loop.samples_per_step},
        "planned": len(known.rows),
        "forecast": None if forecast is None else asdict(forecast),
        "other_plans": _other_plans(known, balance, loop),
        "gain": gain,
        "leave_off": gain < LEAVE_OFF,
        "recommended": _write_code(balance),
        "heaviest": heaviest(rows, work),
    }


def _known_costs(rows: Rows, loop: LoopNow) -> KnownCosts:
    """Return what is planned of the rows: as auto would find it, in the loop as it is."""
    chosen = permutation(len(rows), 0, 0)[:PLANNED]
    is_padded = loop.layout == "padded"
    padded = tuple(name for name in rows.resources if is_padded and name not in ADD_UP)
    choice = Choice(None, rows.resources, padded, bool(np.ptp(rows.costs, axis=0).any()))
    accumulate = Balance("auto", accumulate=loop.accumulate)
    terms = PlanTerms(accumulate, loop.ranks, loop.batch_size, drop_last=False, shuffle=True)
    return KnownCosts(choice, terms, rows.costs[chosen], PLANNED)


def _make_config(balance: Balance, resources: tuple[str, ...], loop: LoopNow) -> PlanConfig:
    """Return the plan that a DataLoader makes of a Balance."""
    return PlanConfig.from_balance(balance, ranks=loop.ranks, resources=resources)


def _recommend_balance(known: KnownCosts, loop: LoopNow, budgets: Mapping[str, int]) -> Balance:
    """Return the Balance to train with: the loop's steps, packed, within budgets.

    Budgets that are not given are a tenth above the largest microbatch of as many as there are now.
    """
    balance = Balance(
        budgets=budgets, samples_per_step=loop.samples_per_step, layout="packed",
        accumulate="auto" if budgets else loop.accumulate,
    )  # fmt: skip
    if budgets or not known.choice.varies:
        return balance
    forecast = known.compare(_make_config(balance, known.choice.resources, loop))
    if forecast is None:
        return balance
    sizes = {name: size for name, size in forecast.largest.items() if size}
    budgets = {name: -(-size * HEADROOM_PERCENT // 100) for name, size in sizes.items()}
    return replace(balance, budgets=budgets, accumulate="auto")


def _other_plans(known: KnownCosts, balance: Balance, loop: LoopNow) -> dict[str, float]:
    """Return a step of other settings, over random order's as it is now.

    By their code; those that begin with an option are the recommended Balance with it.
    """
    auto = known.foretell()
    if auto is None:
        return {}
    accumulate = f", accumulate={loop.accumulate}" if loop.accumulate > 1 else ""
    times = {f'cp.Balance("auto"{accumulate})': auto.time, **known.other_plans()}
    resources = known.choice.resources
    once = _make_config(replace(balance, waits="step"), resources, loop)
    # of a loop whose ranks meet once a step in random order, too
    waits_once = replace(known.terms.balance, waits="step")
    loop_once = replace(known, terms=replace(known.terms, balance=waits_once))
    forecasts = {'waits="step"': loop_once.compare(once)}
    language_names = [name for name in resources if name not in (*ENCODER, *NO_WORK)]
    if language_names and {*ENCODER} & {*resources}:
        budgets = {name: most for name, most in balance.budgets.items() if name in language_names}
        apart = replace(balance, images=Images("images"), budgets=budgets)
        plan = _make_config(apart, resources, loop)
        forecasts['Images("images")'] = known.compare(plan)
    return times | {code: forecast.time for code, forecast in forecasts.items() if forecast}


def _write_code(balance: Balance) -> Json:
    """Return a Balance as its JSON object, as an expression, and with the loader to paste."""
    values, defaults = (json.loads(rules.to_json()) for rules in (balance, DEFAULTS))
    options = (
        f"    {name}={json.dumps(value, ensure_ascii=False)},\n"
        for name, value in values.items()
        if value != defaults[name]
    )
    code = f"Balance(\n{''.join(options)})"
    return {
        "balance": values,
        "code": code,
        "settings": f"from counterpoise.loader import Balance, DataLoader\n\nbalance = {code}\n"
        "loader = DataLoader(dataset, num_workers=8, shuffle=True, balance=balance)\n",
    }
