"""Tells a balanced loader what a framework does, where the user has not said it.

When ranks wait for each other is told to all balanced loaders; how many microbatches a step has,
how losses are weighed and what the model takes to those with balance="auto".
"""

from typing import Any

from ...balancer.planning.problem.model_times import known_time_ns
from ..auto.late import LateAutoLoader
from .gradient_state import meets_once_a_step


def adopt_accumulation(loader: Any, batches: int) -> None:
    """Make a step of `batches` microbatches here, unless the user has said how many it has."""
    late = _late(loader)
    if late is not None:
        late.adopt(accumulate=batches)


def adopt_loop(loader: Any, num_steps: int) -> None:
    """Plan for a loop of accelerate: as many microbatches a step, and when its ranks meet.

    num_steps: the batches that it accumulates; 1 does not say when ranks meet.
    """
    adopt_accumulation(loader, num_steps)
    if num_steps > 1 and meets_once_a_step():
        loader._late.adopt_waits("step")


def adopt_weights(loader: Any) -> None:
    """Set counts="free" for a loop that divides sums over labels by the step's label tokens.

    A microbatch that weighs nothing then has no labels. A user who said equal keeps that.
    """
    late = _late(loader)
    if late is not None:
        late.adopt(counts="free", ignores_labels=True)


def adopt_times(loader: Any, model: Any) -> None:
    """Weigh costs as a model takes them, where its configuration says how it is made."""
    late, config = _late(loader), getattr(model, "config", None)
    if late is not None and (times := known_time_ns(config)) is not None:
        late.adopt_times(times, type(config).__name__)


def weighs_equally(loader: Any) -> bool:
    """Return whether microbatches have equal counts, so that means may be averaged."""
    late = _late(loader)
    return late is not None and late.counts == "equal"


def _late(loader: Any) -> LateAutoLoader | None:
    late = getattr(loader, "_late", None)
    return late if isinstance(late, LateAutoLoader) else None
