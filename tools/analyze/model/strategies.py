"""What a plan would do to a step: waiting, padding, spread, shuffle, in modelled time.

The model of time is linear: a tile costs `tile_tokens` tokens, ranks wait for each other after the
encoder and after the language model of every micro-step (research: "eff"). Waiting is the share of
that time in which a rank stands still, 1 - efficiency. It is computed from costs alone, from the
same planner and seed as the loader uses.
"""

from dataclasses import dataclass, replace

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.balance import DEFAULTS, GroupingName, Mode
from ....balancer.planning.problem.config import PlanConfig
from ....balancer.planning.problem.metrics import (
    TILE_TOKENS,
    chi_square,
    drift,
    efficiency,
    kinds,
    rank_bias,
)
from ...bench.baselines.plan_strategies import EpochPlan, from_planner
from ...inputs.cost_tables import CostTable

STRATEGIES = ("random", "length", "isf", "balanced")
# The strategies that count samples, and the planner's name for each.
COUNTED: dict[str, GroupingName] = {"random": "fixed", "length": "length"}
NORMAL = 1.96  # 95 % of a normal distribution lie within so many standard errors


@dataclass(frozen=True, slots=True)
class Plan:
    """How a step is made. budgets: one for each resource of the table, None for no limit.

    samples_per_step defaults to ranks x accumulate x batch_size; with mode exact `accumulate`
    only says that number, and budgets decide how many microbatches a step has.
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

    @property
    def samples_per_step(self) -> int:
        """Samples of a global batch."""
        return self.samples or self.ranks * self.accumulate * self.batch_size


@dataclass(frozen=True, slots=True)
class Lanes:
    """What ran side by side: encoder and llm work (micro-steps, ranks) in tokens, by step.

    loads (micro-steps, ranks, resources) are the plain sums; counts the samples; flat, owner: the
    samples of the groups and each one's micro-step.
    """

    encoder: Int64
    llm: Int64
    loads: Int64
    counts: Int64
    step_of: Int64
    groups: tuple[tuple[int, ...], ...]

    @property
    def waiting(self) -> float:
        """Share of the time in which ranks stand still."""
        return 1.0 - efficiency(self.encoder, self.llm)

    @property
    def time(self) -> float:
        """Modelled time of a sample, in tokens on one rank."""
        slowest = self.encoder.max(axis=1).sum() + self.llm.max(axis=1).sum()
        samples = max(1, int(self.counts.sum()))
        return float(slowest) * int(self.encoder.shape[1]) / samples


def lay(name: str, table: CostTable, plan: Plan) -> EpochPlan:
    """Plan an epoch of the table by a strategy's rule; ValueError where it cannot be planned."""
    return from_planner(table, _config(name, table, plan))


def lanes(name: str, table: CostTable, plan: Plan, laid: EpochPlan) -> Lanes:
    """Return what the ranks would be given side by side; whole steps where there are any."""
    rows = laid.rows[: laid.whole_rows] if laid.whole_rows else laid.rows
    step_of = laid.step_of_row[: len(rows)]
    sizes = np.array([len(group) for group in laid.groups], np.int64)
    flat = np.array([sample for group in laid.groups for sample in group], np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    loads = np.stack(
        [
            np.bincount(owner, weights=column, minlength=len(sizes))
            for column in table.costs[flat].T
        ],
        axis=1,
    ).astype(np.int64)
    encoder, llm = split(table.resources, loads)
    if name in COUNTED and plan.layout == "padded":
        longest = np.zeros(len(sizes), np.int64)
        np.maximum.at(longest, owner, split(table.resources, table.costs[flat])[1])
        llm = longest * sizes
    groups = tuple(tuple(laid.groups[group]) for group in rows.ravel().tolist())
    picked = (encoder[rows] * plan.tile_tokens, llm[rows], loads[rows], sizes[rows])
    return Lanes(*picked, step_of, groups)


def like(plan: Plan, found: Lanes) -> Plan:
    """Return the plan with as many microbatches a step as those found have, of the same size.

    With exact steps budgets decide how many there are; modes in which budgets decide how many
    samples a step has need to be told.
    """
    deep = max(1, round(len(found.encoder) / len(np.unique(found.step_of))))
    return replace(plan, accumulate=deep, samples=plan.samples_per_step)


def split(resources: tuple[str, ...], loads: Int64) -> tuple[Int64, Int64]:
    """Return encoder units (tiles) and language-model units (tokens, or the first other one).

    >>> [part.tolist() for part in split(("tiles", "tokens"), np.array([[2, 9]]))]
    [[2], [9]]
    """
    encoder = np.zeros(loads.shape[:-1], np.int64)
    if "tiles" in resources:
        encoder = loads[..., resources.index("tiles")]
    others = [k for k, name in enumerate(resources) if name != "tiles"]
    if "tokens" in resources:
        return encoder, loads[..., resources.index("tokens")]
    return encoder, loads[..., others[0]] if others else np.zeros_like(encoder)


def interval(found: Lanes) -> float:
    """Half the width of the 95 % confidence interval of the waiting, over steps; 1 for one step."""
    work = found.encoder.mean(axis=1) + found.llm.mean(axis=1)
    time = found.encoder.max(axis=1) + found.llm.max(axis=1)
    steps = np.unique(found.step_of, return_inverse=True)[1]
    work, time = np.bincount(steps, weights=work), np.bincount(steps, weights=time)
    if len(work) < 2 or not time.sum():
        return 1.0
    off = work - work.sum() / time.sum() * time
    return float(NORMAL * np.sqrt((off**2).sum() * len(work) / (len(work) - 1)) / time.sum())


def shuffle_figures(table: CostTable, found: Lanes) -> dict[str, float]:
    """Return how random the steps still are, and how far one rank is from the mean."""
    sizes = [len(group) for group in found.groups]
    step_of = np.full(len(table.costs), -1, np.int64)
    flat = [sample for group in found.groups for sample in group]
    step_of[flat] = np.repeat(np.repeat(found.step_of, found.counts.shape[1]), sizes)
    lengths = split(table.resources, table.costs)[1]
    chi2, error = chi_square(kinds(lengths, table.sources), step_of)
    return {
        "chi2": chi2,
        "chi2_error": error,
        "drift": drift(lengths, step_of),
        "rank_bias": rank_bias(found.encoder + found.llm),
    }


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
        each = plan.ranks * plan.batch_size
        if plan.samples_per_step % each:
            raise ValueError(
                f"{plan.samples_per_step} samples per step are no multiple of {plan.ranks} ranks x "
                f"{plan.batch_size} samples; use {plan.samples_per_step // each * each or each}"
            )
        return replace(
            whole,
            grouping=COUNTED[name],
            partition="given",
            budgets=unlimited,
            batch_size=plan.batch_size,
            accumulate=plan.samples_per_step // each,
        )
    if name == "isf":
        return replace(
            whole, grouping="isf", partition="given", mode="epoch", accumulate=plan.accumulate
        )
    if plan.mode == "exact":
        return whole
    return replace(whole, mode=plan.mode, accumulate=plan.accumulate)
