"""Makes the ordering that a plan's configuration asks for, from the costs that it holds."""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import OrderRanks, PlanConfig
from ..problem.options import LLM
from ..problem.padded_work import padded_loads
from ..problem.pipeline_costs import PipelineCosts, parse_pipeline
from .cost_model import CostModel, PassCost, amounts_of
from .evaluator import PipelineEvaluator
from .ranks import rank_ordering

# The sum of the squares of sequences' lengths, which profiles weigh attention by.
PAIRS = "token_pairs"
# What the evaluator of 1F1B reads of a profile.
_KINDS = ("F", "B", "I", "W")


def ordering_of(config: PlanConfig) -> OrderRanks | None:
    """Return the function that orders microbatches as the configuration says; None for "given".

    It is given the loads that `ordered_loads` returns. Raises ValueError for costs that need what
    samples do not have, or that are none.
    """
    if not config.pipeline:
        return None
    model, names = cost_model(parse_pipeline(config.pipeline)), _names(config)
    _refuse_unknown(model, names)

    def pipeline_of(loads: Int64) -> PipelineEvaluator:
        return model.pipeline({name: loads[:, column] for column, name in enumerate(names)})

    return rank_ordering(config.ordering, pipeline_of)


def cost_model(pipeline: PipelineCosts) -> CostModel:
    """Return the cost model of a pipeline's passes."""
    passes = {
        kind: tuple(PassCost(e.fixed, e.per_thousand, e.points) for e in entries)
        for kind, entries in pipeline.passes.items()
        if kind in _KINDS
    }
    return CostModel(pipeline.placement, passes)


def ordered_loads(config: PlanConfig, costs: Int64, group_of: Int64, groups: int) -> Int64:
    """Return int64 (groups, resources) of all resources, and last token pairs if there are tokens.

    costs (n, resources): of all samples; group_of (n,): -1 for a sample that is in no group.
    """
    loads = padded_loads(costs, group_of, groups, config.padded_columns)
    if LLM not in config.resources:
        return loads
    column = config.resources.index(LLM)
    layout = "padded" if LLM in config.padded else "packed"
    inside = group_of >= 0
    sequences = costs[inside][:, [column]]
    pairs = amounts_of((LLM,), sequences, group_of[inside], groups, LLM, layout)[PAIRS]
    return np.column_stack([loads, pairs])


def _names(config: PlanConfig) -> tuple[str, ...]:
    return (*config.resources, *((PAIRS,) if LLM in config.resources else ()))


def _refuse_unknown(model: CostModel, names: tuple[str, ...]) -> None:
    """Raise ValueError if a pass' time follows from something else than these amounts."""
    needed = {
        name
        for entries in model.passes.values()
        for entry in entries
        for name in (*entry.per_thousand, *entry.points)
    }
    if unknown := sorted(needed - set(names)):
        raise ValueError(
            f"the cost profile counts {', '.join(unknown)}, but samples cost {', '.join(names)}; "
            "profile the job with the costs that its loader has"
        )
