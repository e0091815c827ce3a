"""The published strategies that `bench plan` compares ours with: each plans a whole epoch."""

import time

import numpy as np

from ...balancer.planning.grouping.groups import members
from ...balancer.planning.grouping.isf import isf
from ...balancer.planning.problem.shuffle import permutation
from ..inputs.cost_tables import CostTable
from ..inputs.epoch_plans import EpochPlan
from .published_samplers import megatron_dp_balanced, transformers_rebalance

COUNT = 4


def isf_printed(
    table: CostTable, budgets: tuple[int | None, ...], ranks: int, accumulate: int, seed: int,
    flush: bool, epoch: int = 0,
) -> EpochPlan:  # fmt: skip
    """Group the epoch by ISF as printed; assign groups to ranks in random order."""
    begin = time.process_time()
    found = isf(table.costs, budgets, seed=seed + epoch, flush=flush)
    seconds = time.process_time() - begin
    groups = members(found.group_of, found.groups)
    left = len(found.left_over) + len(found.oversize)
    return _in_random_order(groups, ranks, accumulate, seed + epoch, left, seconds)


def published(
    name: str, table: CostTable, tokens_budget: int, ranks: int, accumulate: int,
    samples_per_step: int, seed: int, epoch: int = 0,
) -> EpochPlan:  # fmt: skip
    """Plan every global batch of the reference shuffle by a published sampler's rule."""
    order = permutation(len(table.costs), seed, epoch)
    tokens = table.column("tokens")[order]
    numbers = order.tolist()
    groups, steps, made = list[list[int]](), list[int](), 0
    begin = time.process_time()
    for step, start in enumerate(range(0, len(order) - samples_per_step + 1, samples_per_step)):
        some = tokens[start : start + samples_per_step]
        if name == "megatron_dp_balanced":
            found = megatron_dp_balanced(some, ranks, tokens_budget)
        else:
            found = transformers_rebalance(some, ranks, accumulate)
        groups += [[numbers[start + k] for k in group] for group in found]
        steps += [step] * (len(found) // ranks)
        made += len(found)
    seconds = time.process_time() - begin
    rows = np.arange(made, dtype=np.int64).reshape(-1, ranks)
    left = len(order) % samples_per_step
    return EpochPlan(groups, rows, np.array(steps), len(rows), left, seconds=seconds)


def _in_random_order(
    groups: list[list[int]], ranks: int, accumulate: int, seed: int, left: int, seconds: float
) -> EpochPlan:
    rows = permutation(len(groups), seed + 1, 0)[: len(groups) // ranks * ranks].reshape(-1, ranks)
    step_of_row = np.arange(len(rows), dtype=np.int64) // accumulate
    return EpochPlan(groups, rows, step_of_row, len(rows), left, seconds=seconds)
