"""The usual layout, for comparison: one TP and DP for all modules, one stage for small ones.

Megatron-LM does this with a multimodal model (DistTrain, 2025, section 2.1 and Figure 17): encoder
and generator are further stages of the backbone's pipeline.
"""

from .search import Layout, divisors
from .units import OrchestrationProblem, Unit, iteration_ns, memory_of


def rigid(job: OrchestrationProblem) -> Layout | None:
    """Return the best rigid layout by the formula, with the largest TP; None if none fits."""
    sizes = set(job.sizes_of(job.modules[0])).intersection(*map(job.sizes_of, job.modules))
    best = None
    for dp in divisors(job.batch) if sizes else ():
        tp = max(sizes)
        for pp in range(1, job.modules[job.at].layers + 1):
            units = tuple(Unit(tp, dp, pp if at == job.at else 1) for at in range(len(job.modules)))
            # More stages need more GPUs, so no larger pp fits either.
            if sum(unit.gpus for unit in units) > job.gpus:
                break
            if max(memory_of(job, units)) > job.memory_bytes:
                continue
            layout = Layout(units, iteration_ns(job, units))
            if best is None or (layout.formula_ns, layout.gpus) < (best.formula_ns, best.gpus):
                best = layout
    return best
