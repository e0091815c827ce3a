"""Layouts that orchestration is compared with: rigid, Megatron-LM's as DistTrain ran it, by ratio.

Rigid: one TP and DP for all modules, encoder and generator as the first and the last stage of the
backbone's pipeline, the best of all TP, DP and PP sizes. Megatron-LM's is the same with the widest
TP and a PP without a search: for the paper's models that of DistTrain (2025), section 8.1, for
others the least that fits the memory. By ratio: as many GPUs to each module as its share of the
floating point operations (section 8.2.1), with the best TP, DP and PP for them.
"""

from collections.abc import Iterator
from itertools import product

from .search import Allocation, capped, divisors
from .units import OrchestrationProblem, Unit, iteration_ns, module_bytes

# Section 8.1: stages of the backbone.
MEGATRON_STAGES = {"mllm-9b": 1, "mllm-15b": 2, "mllm-72b": 10}


def baselines(job: OrchestrationProblem, stages: int | None = None) -> dict[str, Allocation]:
    """Return the baselines that fit. `stages`: of Megatron-LM's backbone, if the paper says."""
    layouts = {"rigid": rigid(job), "megatron": megatron(job, stages), "ratio": ratio(job)}
    return {name: layout for name, layout in layouts.items() if layout is not None}


def rigid(job: OrchestrationProblem) -> Allocation | None:
    """Return the best rigid layout by the formula; None if none fits."""
    sizes = product(_sizes(job), _depths(job))
    layouts = [layout for tp, pp in sizes for layout in _rigid_layouts(job, tp, pp)]
    return min(layouts, key=lambda layout: (layout.formula_ns, layout.gpus), default=None)


def megatron(job: OrchestrationProblem, stages: int | None = None) -> Allocation | None:
    """Return Megatron-LM's layout: the widest TP, and as many replicas as there are GPUs for."""
    for pp in (stages,) if stages else _depths(job):
        layouts = [layout for tp in _sizes(job)[-1:] for layout in _rigid_layouts(job, tp, pp)]
        if layouts:
            return max(layouts, key=lambda layout: layout.gpus)
    return None


def ratio(job: OrchestrationProblem) -> Allocation | None:
    """Return the best layout with the GPUs that each module's share of operations makes."""
    # A measured module's operations are not known: its time on the fewest GPUs stands for them.
    work = [
        module.flops or min(module.work_ns(tp) * tp for tp in job.tensor_sizes(module))
        for module in job.modules
    ]
    return capped(job, tuple(max(1, job.gpus * amount // max(1, sum(work))) for amount in work))


def _sizes(job: OrchestrationProblem) -> list[int]:
    """Return the TP sizes that all modules have times for."""
    return sorted(set.intersection(*(set(job.tensor_sizes(module)) for module in job.modules)))


def _depths(job: OrchestrationProblem) -> range:
    return range(1, job.modules[job.at].layers + 1)


def _rigid_layouts(job: OrchestrationProblem, tp: int, pp: int) -> Iterator[Allocation]:
    """Yield the rigid layouts of a TP and PP that fit."""
    for dp in divisors(job.batch):
        units = tuple(Unit(tp, dp, pp if at == job.at else 1) for at in range(len(job.modules)))
        if sum(unit.gpus for unit in units) > job.gpus:
            return
        if max(module_bytes(job, units)) <= job.memory_bytes:
            yield Allocation(units, iteration_ns(job, units))
