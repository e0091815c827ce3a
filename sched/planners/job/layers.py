"""The last two choices: layers of each stage, and layers to recompute.

Stages are those of the planner of stages (stage_split.py): equal layers, parameters or times, the
shortest longest stage, an encoder in one piece, and OmniBal's candidates. Recomputed is nothing
where that fits; else what the memory needs, which is the planner's of recomputation
(recompute.py), and everything, as it is usually done.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ...shapes import LayerCost, chain_memory, partition
from ..framework_layouts import merge_encoder
from ..recompute import modelled_stages, plan_recompute
from ..stage_split import candidates, even_stages, parameter_based, profile_based
from .plan import JobPlan
from .pricing import Pricer

# As many candidates as the planner of stages times.
THOROUGH = 15
Policy = tuple[tuple[int, ...], ...]
Layers = tuple[int, ...]


def choices(pricer: Pricer, keep: int = THOROUGH) -> list[Any]:
    """Return the six choices of a job, as `search` takes them.

    `keep`: OmniBal's candidates; 0 leaves the shortest longest stage, equal layers, and an encoder
    in one piece.
    """
    job = pricer.job
    return [
        job.choose_placement,
        job.choose_sizes,
        job.choose_schedule,
        job.choose_batch,
        lambda chosen: stages_to_try(pricer, JobPlan(*(*chosen, (), ())), keep),
        lambda chosen: policies(pricer, JobPlan(*(*chosen, ((),) * len(chosen[-1])))),
    ]


def stages_to_try(pricer: Pricer, plan: JobPlan, keep: int) -> list[Layers]:
    """Return splits of the layers, without repetition."""
    job, where = pricer.job, plan.layout().placement
    # Of the mean sample: how many of them a microbatch holds does not change what is even.
    layers = pricer.layers(plan, {name: n // job.batch for name, n in job.amounts.items()})
    key = ("stages", job.pipeline(plan.placement), where, plan.unit.tp, plan.schedule.spread, keep)
    splits = pricer.keep(key, lambda: _splits(layers, where, keep))
    if keep < THOROUGH:
        return splits
    # What the planner of stages finds for the largest microbatch.
    most = pricer.most(plan)
    heavy = pricer.layers(plan, most)
    thorough = pricer.keep((*key, tuple(most.values())), lambda: _splits(heavy, where, keep))
    return list(dict.fromkeys((*splits, *thorough)))


def _splits(layers: Sequence[LayerCost], where: Sequence[int], keep: int) -> list[Layers]:
    stages = len(where)
    both = [layer.forward_ns + layer.backward_ns for layer in layers]
    splits = [partition(both, where), even_stages(len(layers), stages)]
    if stages > 1 and keep:
        splits += [parameter_based(layers, stages), profile_based(layers, stages)]
        splits += candidates(layers, stages, keep=keep)
    merged = merge_encoder(layers)
    whole = len(layers) - len(merged) + 1
    if whole > 1 and stages <= len(merged):
        first, *later = partition([layer.forward_ns + layer.backward_ns for layer in merged], where)
        splits.append((first - 1 + whole, *later))
    return list(dict.fromkeys(splits))


def policies(pricer: Pricer, nothing: JobPlan) -> list[Policy]:
    """Return what may be recomputed: nothing where it fits, else what is needed, and everything.

    `nothing`: the plan that recomputes nothing.
    """
    if max(pricer.memory(nothing)) <= pricer.job.memory_bytes:
        return [nothing.recompute]
    recomputing = nothing.recomputed()
    if max(pricer.memory(recomputing)) > pricer.job.memory_bytes:
        return []
    needed = _needed(pricer, nothing, recomputing)
    return list(dict.fromkeys((*([needed] if needed else []), recomputing.recompute)))


def _needed(pricer: Pricer, nothing: JobPlan, recomputing: JobPlan) -> Policy | None:
    """Return the layers to recompute for every rank to fit; None if that is not found."""
    layout = nothing.layout(pricer.job.cp)
    layers = pricer.layers(nothing, pricer.most(nothing))
    plain = chain_memory(layers, replace(layout, recompute="all"))
    # What the vocabulary's part and encoders' copies take is no stage's.
    full = pricer.memory(recomputing)[-nothing.unit.pp :]
    limits = [pricer.job.memory_bytes - (a - b.total) for a, b in zip(full, plain, strict=True)]
    if layout.vpp == 1:
        stages, saving = modelled_stages(layers, layout)
        positions = [
            plan_recompute([stage], saving, limit)[0].recompute
            for stage, limit in zip(stages, limits, strict=True)
        ]
    else:
        positions = _greedy(layers, nothing, limits, pricer.job.cp)
    plan = replace(nothing, recompute=tuple(positions))
    return plan.recompute if max(pricer.memory(plan)) <= pricer.job.memory_bytes else None


def _greedy(
    layers: Sequence[LayerCost], plan: JobPlan, limits: Sequence[int], cp: int
) -> list[tuple[int, ...]]:
    """Return layers to recompute of ranks with several stages, most bytes for their time first.

    Each rank's number of layers is found by halving, for all ranks at once.
    """
    layout = plan.layout(cp)
    starts = [0, *accumulate(plan.stages)]
    order: list[list[tuple[float, int, int]]] = [[] for _ in limits]
    for stage, rank in enumerate(layout.placement):
        for at in range(plan.stages[stage]):
            layer = layers[starts[stage] + at]
            saved = layer.activation_bytes - layer.input_bytes
            order[rank].append((-saved / max(1, layer.recompute_ns), stage, at))
    order = [sorted(ranked) for ranked in order]
    low, high = [0] * len(limits), [len(ranked) for ranked in order]
    # As many layers as `high` always fit, fewer than `low` never do.
    while any(a < b for a, b in zip(low, high, strict=True)):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        tried = replace(layout, recompute=_first(order, middle, len(plan.stages)))
        for rank, rank_memory in enumerate(chain_memory(layers, tried)):
            if rank_memory.total <= limits[rank]:
                high[rank] = middle[rank]
            else:
                low[rank] = min(high[rank], middle[rank] + 1)
    return list(_first(order, high, len(plan.stages)))


def _first(
    order: Sequence[Sequence[tuple[float, int, int]]], counts: Sequence[int], stages: int
) -> Policy:
    """Return the policy that recomputes the first layers of each rank's order."""
    chosen: list[list[int]] = [[] for _ in range(stages)]
    for ranked, count in zip(order, counts, strict=True):
        for _, stage, position in ranked[:count]:
            chosen[stage].append(position)
    return tuple(tuple(sorted(positions)) for positions in chosen)
