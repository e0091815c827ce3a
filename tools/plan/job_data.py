"""The data of a job: samples of a step, the microbatches that a loader makes of them, its rules."""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.ordering.evaluator import PipelineEvaluator
from ...balancer.planning.ordering.search import find_order
from ...balancer.planning.planner import make_planner
from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig, Window
from ...balancer.planning.problem.options import ATTENTION_PAIRS
from ...balancer.planning.problem.values import PipelineOrder, Shapes
from ...sched.planners.job.plan import BatchChoice, Job, JobPlan, StepLoads
from ...sched.shapes import Amounts, Model
from ..analyze.scan.run import scan_sources
from ..analyze.scan.sources import ScanOptions
from ..inputs.files import is_table, open_table
from ..runners import on_cores

# What budgets allow above a step's largest microbatch: other steps have others.
HEADROOM_PERCENT = 110
# Tokens or tiles of a sample: the times of attention on more are no 64-bit nanoseconds.
MOST_MODELLED = 2**24
TOKENS, PAIRS = "tokens", "token_pairs"


@dataclass(frozen=True)
class StepSamples:
    """The samples of a step: costs (samples, names), tokens first.

    `work` weighs each name, and pairs of tokens. `real`: tokens before they were padded for
    context parallelism.
    """

    names: tuple[str, ...]
    costs: Int64
    work: tuple[int, ...]
    real: int

    @property
    def images(self) -> Int64:
        """Return each sample's work in the encoders (samples,), in a unit of its own."""
        work: Int64 = self.costs[:, 1:] @ np.array(self.work[1:-1], np.int64)
        return work

    @cached_property
    def amounts(self) -> Amounts:
        """Return the amounts of all samples together."""
        sums = self._add_pairs(self.costs).sum(axis=0).tolist()
        return dict(zip((*self.names, PAIRS), sums, strict=True))

    def loads(self, dp: int, batch: BatchChoice) -> StepLoads:
        """Return the microbatches of a step, those of the replica with the most work."""
        groups = (
            self._split_evenly(dp, batch)
            if batch.grouping == "fixed"
            else self._plan_microbatches(dp, batch)
        )
        costs = self._add_pairs(self.costs)
        sums = np.array([[costs[list(samples)].sum(axis=0) for samples in row] for row in groups])
        weigh = np.array(self.work)
        work = (sums * weigh).sum(axis=(1, 2))
        names = (*self.names, PAIRS)
        heaviest = tuple(
            dict(zip(names, row, strict=True)) for row in sums[int(work.argmax())].tolist()
        )
        most = -(-sums.max(axis=(0, 1)) * HEADROOM_PERCENT // 100)
        padding = 1 - self.real / max(1, int(self.costs[:, 0].sum()))
        return StepLoads(
            heaviest,
            float(work.mean() / max(1, work.max())),
            padding,
            dict(zip(names, most.tolist(), strict=True)),
        )

    def _split_evenly(self, dp: int, batch: BatchChoice) -> list[list[Int64]]:
        """Return samples as they come, as many in each microbatch."""
        microbatches = np.array_split(np.arange(len(self.costs)), dp * batch.microbatches)
        return [microbatches[rank::dp] for rank in range(dp)]

    def _plan_microbatches(self, dp: int, batch: BatchChoice) -> list[list[tuple[int, ...]]]:
        """Return what the loader's planner makes of them."""
        config = PlanConfig(
            dp, len(self.costs), batch.microbatches, self.names, (None,) * len(self.names),
            waits="step",
            time_ns=tuple(zip((*self.names, ATTENTION_PAIRS), self.work, strict=True)),
        )  # fmt: skip
        planned = make_planner(config).plan(Window(0, 0, 0, self.costs, last=False))
        return [[microbatch.ordinals for microbatch in rank] for rank in planned.batches[0].ranks]

    @staticmethod
    def _add_pairs(costs: Int64) -> Int64:
        return np.column_stack((costs, costs[:, 0] ** 2))


def read_samples(
    data: str, model: Model, batch: int, seed: int, cp: int, progress: Progress
) -> StepSamples:
    """Return the samples of a step, with tokens that context parallelism divides.

    Raises ValueError as `draw_costs`, and where no sample has any tokens.
    """
    names = (TOKENS, *dict.fromkeys(part.unit for part in model.encoders))
    drawn = draw_costs(data, names, batch, seed, progress)
    if not (real := int(drawn[:, 0].sum())):
        raise ValueError(f"{data}: none of {batch} samples has any tokens; give data with some")
    if cp > 1:
        drawn[:, 0] = -(-drawn[:, 0] // (2 * cp)) * 2 * cp
    none = dict.fromkeys((*names, PAIRS), 0)
    flops = (model.forward_flops({**none, name: 10**6}) for name in (*names, PAIRS))
    return StepSamples(names, drawn, tuple(max(1, count // 10**9) for count in flops), real)


def draw_costs(
    data: str, names: tuple[str, ...], count: int, seed: int, progress: Progress
) -> Int64:
    """Return samples' costs (count, names), drawn from a table, an analysis, or a data set.

    Raises ValueError where samples have no such costs, or too large ones.
    """
    path = Path(data)
    path = path / "index.npz" if (path / "index.npz").is_file() else path
    if is_table(path.name):
        costs = open_table(path).costs(names)
    else:
        costs = _scan_costs(data, names, progress)
    if not len(costs):
        raise ValueError(f"{data} has no samples; give a data set with some")
    rng = np.random.default_rng(seed)
    drawn: Int64 = costs[rng.choice(len(costs), count, replace=count > len(costs))]
    if (largest := int(drawn.max())) > MOST_MODELLED:
        raise ValueError(
            f"{data} has a sample of {largest:,} tokens or units, and {MOST_MODELLED:,} are the "
            "most that is planned; leave it out"
        )
    return drawn


def _scan_costs(data: str, names: tuple[str, ...], progress: Progress) -> Int64:
    """Return what a scan for costs finds, as `analyze` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        rows, *_ = scan_sources((data,), ScanOptions(), Path(folder), on_cores(), progress)
    if missing := [name for name in names if name not in rows.resources]:
        raise ValueError(
            f"{data}: samples cost {', '.join(rows.resources) or 'nothing'}, and the model counts "
            f"{', '.join(missing)}; give a table of costs with these columns"
        )
    return np.stack([rows.column(name) for name in names], axis=1)


def order_microbatches(name: str, ranks: int, forward: Int64, backward: Int64) -> list[int]:
    """Return the order that an ordering finds for a pipeline's microbatches."""
    evaluator = PipelineEvaluator.one_forward_one_backward(ranks, forward, backward)
    order: list[int] = find_order(name, evaluator).tolist()
    return order


def make_balance(plan: JobPlan, job: Job, most: Amounts, out: Path) -> Balance:
    """Return the rules by which a loader makes the plan's microbatches.

    `out`: the file that they will be in, whose costs an ordering reads.
    """
    budgets = {name: amount for name, amount in most.items() if name != PAIRS and amount}
    ordering: Any = plan.batch.ordering
    return Balance(
        budgets=budgets, samples_per_step=job.batch, accumulate=plan.batch.microbatches,
        waits="step", layout="packed", shapes=Shapes(cp=job.cp),
        pipeline=None if ordering == "given" else PipelineOrder(str(out), ordering),
    )  # fmt: skip
