"""The layout planner: search by the formula, then let the simulator choose.

The formula uses mean samples only. Where samples differ, encoder and generator need headroom for
heavy ones, and the right amount is not known beforehand; so the search also runs as if they took
25 % and 50 % longer, and all candidates are simulated with the real samples. The rigid layout is
simulated too, so the plan is never slower.
"""

from dataclasses import replace

from .rigid import rigid
from .search import Layout, orchestrate
from .simulated import RankedLayout, Work, rerank
from .units import Module, OrchestrationProblem, iteration_ns

HEADROOM_PERCENT = (100, 125, 150)


def plan_layouts(
    job: OrchestrationProblem, keep: int = 5, work: Work | None = None
) -> tuple[RankedLayout, ...]:
    """Return the `keep` fastest layouts in simulation, best first.

    `work` as `rerank` takes it. Raises ValueError as `orchestrate` and `rerank` do.
    """
    found: dict[Layout, None] = {}
    for percent in HEADROOM_PERCENT if work else HEADROOM_PERCENT[:1]:
        for layout in orchestrate(_slower(job, percent), keep):
            found[Layout(layout.units, iteration_ns(job, layout.units))] = None
    if usual := rigid(job):
        found[usual] = None
    return rerank(job, tuple(found), work)[:keep]


def _slower(job: OrchestrationProblem, percent: int) -> OrchestrationProblem:
    """Return the job with encoder and generator taking `percent` of their time."""

    def slow(module: Module) -> Module:
        return replace(
            module,
            forward_ns={tp: ns * percent // 100 for tp, ns in module.forward_ns.items()},
            backward_ns={tp: ns * percent // 100 for tp, ns in module.backward_ns.items()},
        )

    return replace(
        job, modules=tuple(m if m.name == job.backbone else slow(m) for m in job.modules)
    )
