"""Plans an epoch by each strategy, and models the time of its steps.

The model of time is linear: a tile costs `tile_tokens` tokens, and ranks wait for each other after
the encoder and after the language model of every micro-step. Waiting is the share of that time in
which a rank is idle, 1 - efficiency. It is computed from costs alone, with the planner and the seed
that the loader uses.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.balance import DEFAULTS
from ....balancer.planning.problem.config import PlanConfig
from ....balancer.planning.problem.metrics import TILE_TOKENS, efficiency
from ....balancer.planning.problem.options import (
    Dispatch,
    GroupingName,
    Mode,
    Waits,
    dispatched_of,
)
from ...inputs.cost_tables import CostTable, encoder_and_llm, from_planner

STRATEGIES = ("random", "isf", "balanced")
# The strategies that count samples, and the planner's name for each.
COUNTED: dict[str, GroupingName] = {"random": "fixed"}
NORMAL = 1.96  # 95 % of a normal distribution lie within this many standard errors


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a step. budgets: one for each resource of the table, None for no limit.

    samples_per_step is `samples`, or ranks x accumulate x batch_size by default. In mode exact,
    accumulate serves only for that; the number of microbatches follows from the budgets.
    """

    ranks: int = 8
    accumulate: int = 4
    batch_size: int = 4
    samples: int = 0
    mode: Mode = DEFAULTS.mode
    budgets: tuple[int | None, ...] = ()
    layout: str = "padded"
    tile_tokens: int = TILE_TOKENS
    seed: int = 0
    waits: Waits = DEFAULTS.resolved_waits
    dispatch: Dispatch = DEFAULTS.dispatch
    buckets: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def samples_per_step(self) -> int:
        """Return the samples of a global batch."""
        return self.samples or self.ranks * self.accumulate * self.batch_size


@dataclass(frozen=True, slots=True)
class MicroSteps:
    """The work of ranks in each micro-step: encoder and llm (micro-steps, ranks), in tokens.

    loads (micro-steps, ranks, resources): sums of costs; counts (micro-steps, ranks): samples;
    step_of (micro-steps,): the step; groups: samples of each microbatch, row by row of counts.
    """

    encoder: Int64
    llm: Int64
    loads: Int64
    counts: Int64
    step_of: Int64
    groups: tuple[tuple[int, ...], ...]

    @property
    def step_count(self) -> int:
        """Return the number of steps."""
        return len(np.unique(self.step_of))

    def per_step(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sums (steps, ...) of values (micro-steps, ...) over each step."""
        steps = np.unique(self.step_of, return_inverse=True)[1]
        sums = np.zeros((int(steps.max(initial=0)) + 1, *values.shape[1:]), values.dtype)
        np.add.at(sums, steps, values)
        return sums

    @property
    def waiting(self) -> float:
        """Return the share of the time in which ranks wait."""
        return 1.0 - efficiency(self.encoder, self.llm)

    @property
    def waiting_once(self) -> float:
        """Return the share of the time in which ranks wait if they meet once a step only."""
        sums = self.per_step(self.encoder + self.llm)
        whole = float(sums.max(axis=1).sum()) * self.encoder.shape[1]
        return 1.0 - float(sums.sum()) / whole if whole else 0.0

    @property
    def time(self) -> float:
        """Return the modelled time of a sample, in tokens on one rank."""
        slowest = self.encoder.max(axis=1).sum() + self.llm.max(axis=1).sum()
        samples = max(1, int(self.counts.sum()))
        return float(slowest) * int(self.encoder.shape[1]) / samples


def micro_steps(name: str, table: CostTable, plan: Plan) -> MicroSteps:
    """Plan an epoch of the table by a strategy, and return what its ranks get.

    A partial last step is left out unless it is the only one. Raises ValueError if the epoch cannot
    be planned.
    """
    planned = from_planner(table, _config(name, table, plan))
    # A partial last step is shorter for all strategies and would add noise to the comparison.
    rows = planned.rows[: planned.whole_rows] if planned.whole_rows else planned.rows
    step_of = planned.step_of_row[: len(rows)]
    sizes = np.array([len(group) for group in planned.groups], np.int64)
    flat = np.array([sample for group in planned.groups for sample in group], np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    loads = np.stack(
        [
            np.bincount(owner, weights=column, minlength=len(sizes))
            for column in table.costs[flat].T
        ],
        axis=1,
    ).astype(np.int64)
    encoder, llm = encoder_and_llm(table.resources, loads)
    if name in COUNTED and plan.layout == "padded":
        # A padded microbatch computes its longest sample's length for every sample.
        longest = np.zeros(len(sizes), np.int64)
        np.maximum.at(longest, owner, encoder_and_llm(table.resources, table.costs[flat])[1])
        llm = longest * sizes
    groups = tuple(tuple(planned.groups[group]) for group in rows.ravel().tolist())
    picked = (encoder[rows] * plan.tile_tokens, llm[rows], loads[rows], sizes[rows])
    return MicroSteps(*picked, step_of, groups)


def micro_steps_if_possible(name: str, table: CostTable, plan: Plan) -> MicroSteps | None:
    """Return the micro-steps, None if the partial last step cannot meet the budgets."""
    try:
        return micro_steps(name, table, plan)
    except ValueError:
        return None


def with_accumulate_of(plan: Plan, found: MicroSteps) -> Plan:
    """Return the plan with as many microbatches per step as those found, of the same size.

    With exact steps the budgets decide that number; other modes must be given it.
    """
    accumulate = max(1, round(len(found.encoder) / found.step_count))
    return replace(plan, accumulate=accumulate, samples=plan.samples_per_step)


def waiting_interval(found: MicroSteps) -> float:
    """Return half the 95 % confidence interval of the waiting, over steps; 1 for a single step."""
    work = found.encoder.mean(axis=1) + found.llm.mean(axis=1)
    time = found.encoder.max(axis=1) + found.llm.max(axis=1)
    work, time = found.per_step(work), found.per_step(time)
    if len(work) < 2 or not time.sum():
        return 1.0
    off = work - work.sum() / time.sum() * time
    return float(NORMAL * np.sqrt((off**2).sum() * len(work) / (len(work) - 1)) / time.sum())


def check_step(plan: Plan) -> None:
    """Raise ValueError for a step that random order, for one, cannot be made of."""
    each = plan.ranks * plan.batch_size
    if plan.samples_per_step % each:
        nearest = plan.samples_per_step // each * each or each
        raise ValueError(
            f"{plan.samples_per_step} samples per step are not a multiple of {plan.ranks} "
            f"ranks x {plan.batch_size} samples; use {nearest}"
        )


def _config(name: str, table: CostTable, plan: Plan) -> PlanConfig:
    unlimited = tuple(None for _ in table.resources)
    whole = PlanConfig(
        ranks=plan.ranks,
        samples_per_step=plan.samples_per_step,
        accumulate="auto",
        resources=table.resources,
        budgets=plan.budgets or unlimited,
        seed=plan.seed,
    )
    if name in COUNTED:
        check_step(plan)
        return replace(
            whole,
            grouping=COUNTED[name],
            partition="given",
            budgets=unlimited,
            batch_size=plan.batch_size,
            accumulate=plan.samples_per_step // (plan.ranks * plan.batch_size),
        )
    if name == "isf":
        return replace(
            whole, grouping="isf", partition="given", mode="epoch", accumulate=plan.accumulate
        )
    apart = dispatched_of(plan.dispatch, table.resources)
    pairs = zip(table.resources, whole.budgets, strict=True)
    budgets = tuple(None if name in apart else most for name, most in pairs)
    whole = replace(
        whole, waits=plan.waits, budgets=budgets, dispatched=apart, buckets=plan.buckets
    )  # fmt: skip
    # Where only what travels had budgets, none is left to fill microbatches by.
    if plan.mode == "exact" or (apart and not any(budgets)):
        return whole
    return replace(whole, mode=plan.mode, accumulate=plan.accumulate)
