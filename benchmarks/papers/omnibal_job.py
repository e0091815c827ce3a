"""OmniBal's job, simulated: mini-batches of real costs, stages, recomputation, GPU days.

GPU days are those of one pass over the data: the mean step of a few drawn ones, each as long as its
slowest replica's, times the steps. The paper does not print all of its job. Assumed are: 32
microbatches a step and replica (the commands' default; 512 samples where a microbatch has 4), no
sequence parallelism, DeepSpeed's own split by parameters and recomputation of everything before
balancing; and InternViT's layers at 70 % of the language model's FLOP/s, EVA-CLIP's at 100 %, as
the stages that the paper measured as best say (Table 9; docs/benchmarks/bench-layouts.md).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from counterpoise.balancer.planning.grouping.isf import isf
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.sched.planners.recompute import modelled_stages, plan_recompute
from counterpoise.sched.planners.stage_split import BASELINES, Sizes, balanced_partition, step_timer
from counterpoise.sched.shapes import (
    Device,
    Model,
    ParallelLayout,
    Recompute,
    layer_costs,
    read_device,
    read_model,
    step,
)

from ..planning import epochs
from ..planning.costs import CostTable, read_costs

BUDGETS = (9, 4096)
SIZE, MICROBATCHES = 4, 32
# Microbatches that are simulated for a figure, at least one step of all replicas.
DRAWN = 1024
# Of a node's links: each GPU's share of 4 x 200 Gb/s, as much as NCCL usually reaches of it.
A100 = replace(read_device("a100"), network_bytes_per_s=11 * 10**9)
ENCODER_PERCENT = {"internvit-6b": 35}
SHARE_OF_MEMORY = 0.92
# Strategies that sort windows are planned on so many samples only.
FEW = 100_000


@dataclass(frozen=True, slots=True)
class Batches:
    """Mini-batches side by side. `loads` (rows, ranks, 3): tiles, tokens, pairs of tokens.

    `size`: the mean number of samples; `padding`: the share of tokens that are none.
    """

    loads: Int64
    size: float
    padding: float

    @property
    def ratios(self) -> dict[str, float]:
        """Return DistRatio of tiles and of tokens, by the papers' names."""
        names = ("DistRatio, ViT", "DistRatio, LLM")
        return {name: epochs.dist_ratio(self.loads[..., at]) for at, name in enumerate(names)}

    @property
    def mean(self) -> dict[str, int]:
        """Return the mean mini-batch."""
        return amounts(*(round(one) for one in self.loads.reshape(-1, 3).mean(axis=0)))

    def steps(self, layout: ParallelLayout) -> Iterator[list[list[dict[str, int]]]]:
        """Yield steps from all over the epoch: the microbatches of each replica."""
        each = layout.microbatches * layout.dp
        rows = self.loads.reshape(-1, 3)
        whole = rows[: len(rows) // each * each].reshape(-1, layout.microbatches, layout.dp, 3)
        count = min(len(whole), max(1, DRAWN // each))
        for one in whole[np.linspace(0, len(whole) - 1, count).astype(int)].transpose(0, 2, 1, 3):
            yield [[amounts(*load) for load in replica] for replica in one.tolist()]


def amounts(tiles: int, tokens: int, pairs: int) -> dict[str, int]:
    """Return a microbatch for the planners."""
    return {"tiles": tiles, "tokens": tokens, "token_pairs": pairs}


@cache
def table(data: Path, name: str = "calibrated_1200k") -> CostTable:
    """Return the costs of a data set."""
    return read_costs(data / "metadata" / f"{name}.npz", ("tiles", "tokens"), 0, 0)


def few_tiles(costs: CostTable, most: int) -> CostTable:
    """Return the costs with images of at most so many tiles, each of 256 tokens."""
    tiles, tokens = costs.costs.T
    kept = np.minimum(tiles, most)
    return replace(costs, costs=np.stack([kept, tokens - 256 * (tiles - kept)], axis=1))


def random_batches(costs: CostTable, ranks: int) -> Batches:
    """Return mini-batches of 4 samples in random order, padded to the longest."""
    order = permutation(len(costs.costs), 0, 0)
    return _padded(
        costs, order[: len(order) // (SIZE * ranks) * SIZE * ranks].reshape(-1, SIZE), ranks
    )


def _padded(costs: CostTable, groups: Int64, ranks: int) -> Batches:
    """Return mini-batches of these samples (n, SIZE)."""
    tiles, tokens = costs.costs[groups].transpose(2, 0, 1)
    longest = tokens.max(axis=1)
    loads = np.stack([tiles.sum(axis=1), SIZE * longest, SIZE * longest**2], axis=1)
    padding = float(np.mean(1 - tokens.sum(axis=1) / (SIZE * longest)))
    return Batches(loads.reshape(-1, ranks, 3), float(SIZE), padding)


def planned_batches(costs: CostTable, strategy: str, ranks: int) -> Batches:
    """Return mini-batches of 4 by a strategy that sorts, of some samples."""
    drawn = permutation(len(costs.costs), 2, 0)[:FEW]
    some = CostTable(costs.resources, costs.costs[drawn], costs.sources[drawn])
    config = epochs.make_config(some, BUDGETS, ranks, MICROBATCHES, "window", 0)
    plan = epochs.STRATEGIES[strategy](some, config, 0)
    return _padded(some, np.array(plan.groups, np.int64), ranks)


@cache
def _isf_groups(
    data: Path, name: str, most_tiles: int, budgets: Sizes, targets: Sizes | None
) -> Batches:
    costs = few_tiles(table(data, name), most_tiles)
    found = isf(costs.costs, budgets, targets, flush=False)
    inside = found.group_of >= 0
    tiles, tokens = costs.costs[inside].T
    owner = found.group_of[inside]
    sums = [np.bincount(owner, one, found.groups) for one in (tiles, tokens, tokens**2)]
    order = permutation(found.groups, 1, 0)
    loads = np.stack(sums, axis=1).astype(np.int64)[order]
    return Batches(loads[:, None], float(inside.sum() / found.groups), 0.0)


def isf_batches(
    data: Path,
    ranks: int,
    name: str = "calibrated_1200k",
    *,
    most_tiles: int = 99,
    budgets: Sizes = BUDGETS,
    targets: Sizes | None = None,
) -> Batches:
    """Return packed mini-batches of ISF as printed, assigned to ranks in random order."""
    found = _isf_groups(data, name, most_tiles, budgets, targets)
    whole = len(found.loads) // ranks * ranks
    return replace(found, loads=found.loads[:whole].reshape(-1, ranks, 3))


@dataclass(frozen=True, slots=True)
class Job:
    """A model on GPUs; `samples`: of one pass over the data."""

    model: Model
    layout: ParallelLayout
    device: Device = A100
    samples: int = 1_200_000

    def days(self, batches: Batches, stages: Sizes, recompute: Recompute = "all") -> float:
        """Return the GPU days of a pass over the data."""
        cut = replace(self.layout, stages=stages, recompute=recompute)
        ends = [
            max(step(self.model, self.device, cut, replica).total_ns for replica in replicas)
            for replicas in batches.steps(cut)
        ]
        steps = self.samples / (cut.dp * cut.microbatches * batches.size)
        return float(np.mean(ends)) / 1e9 * steps * cut.gpus / 86_400

    def split(self, method: str, load: Mapping[str, int]) -> Sizes:
        """Return the stages that a method cuts for this mini-batch; `balanced` is the planner's."""
        layers = layer_costs(self.model, self.device, self.layout, load)
        if method != "balanced":
            return BASELINES[method](layers, self.layout.pp)
        timer = step_timer(layers, self.device, self.layout)
        return balanced_partition(layers, self.layout.pp, timer)[0][0]

    def recompute(self, stages: Sizes, budgets: Sizes = BUDGETS) -> Recompute:
        """Return the layers to recompute for full microbatches to fit."""
        cut = replace(self.layout, stages=stages)
        layers = layer_costs(self.model, self.device, cut, _full(budgets))
        found, saving = modelled_stages(layers, cut)
        limit = int(SHARE_OF_MEMORY * self.device.memory_bytes)
        return tuple(one.recompute for one in plan_recompute(found, saving, limit))


def _full(budgets: Sizes) -> dict[str, int]:
    tiles, tokens = budgets
    return amounts(tiles, tokens, tokens**2)


def make_job(model: str, tp: int, pp: int, dp: int, device: Device = A100) -> Job:
    """Return a job by names and sizes."""
    layout = ParallelLayout(tp, pp, dp, microbatches=MICROBATCHES, sequence_parallel=False)
    percent = ENCODER_PERCENT.get(model.split("+")[0], device.efficiency_percent)
    return Job(read_model(model), layout, replace(device, encoder_percent=percent))
