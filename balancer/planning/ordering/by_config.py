"""The ordering that a plan's configuration asks for, by the cost model that it holds.

The cost model takes a microbatch's resources to nanoseconds per stage and pass. A resource
token_pairs is the sum of the squares of the sequences' lengths: attention.
"""

from collections.abc import Mapping

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import OrderRanks, PlanConfig
from ..problem.loads import group_loads
from ..problem.options import LLM
from ..problem.pipeline_costs import PassEntry, PipelineCosts, parse_pipeline
from ..problem.work import padded_loads
from .evaluator import PipelineEvaluator
from .ranks import rank_ordering

Amounts = Mapping[str, Int64]
Points = tuple[tuple[int, int], ...]


def compute_time(entry: PassEntry, amounts: Amounts) -> Int64:
    """Return the time of one pass of microbatches, int64 nanoseconds.

    It is the sum of `fixed`, of per_thousand x amount / 1000 rounded down, and for every resource
    in `points`, (amount, ns) pairs, of the time interpolated linearly between them (as DistTrain,
    2024, section 3, does with measurements). Beyond the points the first or last piece continues.
    amounts: of each resource that the entry names, int64 arrays of one length.

    >>> compute_time(PassEntry(10, {"tokens": 1500}), {"tokens": np.array([3, 5])}).tolist()
    [14, 17]
    >>> steep = PassEntry(points={"tiles": ((0, 0), (4, 8), (8, 32))})
    >>> compute_time(steep, {"tiles": np.array([2, 6, 9])})
    array([ 4, 20, 38])
    """
    size = len(next(iter(amounts.values()), np.empty(0)))
    extra = np.zeros(size, dtype=np.int64)
    for name, rate in entry.per_thousand.items():
        extra += amounts[name].astype(np.int64) * rate
    total: Int64 = extra // 1000 + entry.fixed
    for name, points in entry.points.items():
        total = total + _interpolate(points, amounts[name].astype(np.int64))
    return total


def pass_times(pipeline: PipelineCosts, kind: str, amounts: Amounts) -> Int64:
    """Return int64 (stages, microbatches): nanoseconds of one kind of pass."""
    costs, stages = pipeline.passes[kind], len(pipeline.placement)
    return np.stack([compute_time(cost, amounts) for cost in (costs * stages)[:stages]])


def make_evaluator(pipeline: PipelineCosts, amounts: Amounts) -> PipelineEvaluator:
    """Return the 1F1B pipeline (interleaved where ranks hold several stages) of microbatches.

    A backward pass takes the time of B, or of I and W together, or twice that of forward.
    """
    forward = pass_times(pipeline, "F", amounts)
    backward: Int64 = 2 * forward
    if "B" in pipeline.passes:
        backward = pass_times(pipeline, "B", amounts)
    elif "I" in pipeline.passes:
        backward = pass_times(pipeline, "I", amounts) + pass_times(pipeline, "W", amounts)
    ranks = max(pipeline.placement) + 1
    return PipelineEvaluator.one_forward_one_backward(ranks, forward, backward)


def token_pairs(lengths: Int64, group_of: Int64, groups: int, padded: bool) -> Int64:
    """Return int64 (groups,): the sum of the squares of the lengths (n,) of each group's sequences.

    padded: every sequence counts as its group's longest.

    >>> lengths, group_of = np.array([3, 1, 2]), np.array([0, 0, 1])
    >>> [token_pairs(lengths, group_of, 2, padded).tolist() for padded in (False, True)]
    [[10, 4], [18, 4]]
    """
    if padded:
        longest = np.zeros(groups, dtype=np.int64)
        np.maximum.at(longest, group_of, lengths)
        lengths = longest[group_of]
    return group_loads(lengths[:, None] ** 2, group_of, groups)[:, 0]


def _interpolate(points: Points, amounts: Int64) -> Int64:
    """Return int64 (n,) on the lines through the points around each amount, 0 or more."""
    xs = np.array([x for x, _ in points], dtype=np.int64)
    ys = np.array([y for _, y in points], dtype=np.int64)
    piece = np.clip(np.searchsorted(xs, amounts, side="right") - 1, 0, len(xs) - 2)
    run, rise = np.diff(xs)[piece], np.diff(ys)[piece]
    return np.maximum(0, ys[piece] + (amounts - xs[piece]) * rise // run)


# The sum of the squares of sequences' lengths, which profiles weigh attention by.
PAIRS = "token_pairs"
# What the evaluator of 1F1B reads of a profile.
_KINDS = ("F", "B", "I", "W")


def make_ordering(config: PlanConfig) -> OrderRanks:
    """Return the function that orders microbatches as the configuration's pipeline says.

    It is given the loads that `ordered_loads` returns. Raises ValueError for costs that need what
    samples do not have, or that are none.
    """
    pipeline = parse_pipeline(config.pipeline)
    names = (*config.resources, *((PAIRS,) if LLM in config.resources else ()))
    used = [entry for kind in _KINDS for entry in pipeline.passes.get(kind, ())]
    needed = {name for entry in used for name in (*entry.per_thousand, *entry.points)}
    if unknown := sorted(needed - set(names)):
        raise ValueError(
            f"the cost profile counts {', '.join(unknown)}, but samples cost {', '.join(names)}; "
            "profile the job with the costs that its loader has"
        )

    def evaluate_loads(loads: Int64) -> PipelineEvaluator:
        amounts = {name: loads[:, column] for column, name in enumerate(names)}
        return make_evaluator(pipeline, amounts)

    return rank_ordering(config.ordering, evaluate_loads)


def ordered_loads(config: PlanConfig, costs: Int64, group_of: Int64, groups: int) -> Int64:
    """Return int64 (groups, resources) of all resources, and last token pairs if there are tokens.

    costs (n, resources): of all samples; group_of (n,): -1 for a sample that is in no group.
    """
    loads = padded_loads(costs, group_of, groups, config.padded_columns)
    loads = config.sizing.bucketed(loads)
    if LLM not in config.resources:
        return loads
    column = config.resources.index(LLM)
    inside = group_of >= 0
    lengths, is_padded = costs[inside, column], LLM in config.padded
    pairs = token_pairs(lengths, group_of[inside], groups, is_padded)
    return np.column_stack([loads, pairs])
