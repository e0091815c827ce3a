"""Tells a loader with balance="auto" what a framework does: how it accumulates, and weighs."""

from typing import Any

from ...balancer.planning.problem.model_times import known_time_ns
from ..auto.late import LateAutoLoader


def adopt_accumulation(loader: Any, batches: int) -> None:
    """Make a step of `batches` microbatches here, unless the user has said how many it has."""
    late = _late(loader)
    if late is not None:
        late.adopt(accumulate=batches)


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
