"""From the loader's keyword arguments to a plan: defaults that fit together, mistakes named."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from ...balancer.planning.problem.config import PlanConfig
from ...workers.sources.failures import load_with_retries
from ...workers.sources.interface import SampleError, Source

DEFAULT_RESOURCES = ("tiles", "tokens", "label_tokens")
# A source whose first samples are broken is asked for the names of its costs so many times.
TRIES = 100


def make_plan(
    *,
    balance: str,
    resources: tuple[str, ...],
    ranks: int,
    batch_size: int | None,
    samples_per_step: int | None,
    accumulate: int | Literal["auto"],
    budgets: Mapping[str, int] | None,
    **rest: Any,
) -> PlanConfig:
    """Return the plan that the arguments ask for.

    `balance` is the grouping; with "fixed" every microbatch has batch_size samples. Without
    samples_per_step a step has batch_size samples for every rank and microbatch. Raises ValueError
    for budgets of unknown resources and whatever PlanConfig refuses.
    """
    unknown = sorted(set(budgets or {}) - set(resources))
    if unknown:
        raise ValueError(
            f"budgets name {', '.join(unknown)}, but samples cost {', '.join(resources)}"
        )
    per_rank = (batch_size or 1) * (1 if accumulate == "auto" else accumulate)
    return PlanConfig(
        ranks=ranks,
        samples_per_step=samples_per_step or ranks * per_rank,
        accumulate=accumulate,
        resources=resources,
        budgets=tuple((budgets or {}).get(name) for name in resources),
        grouping=balance,
        batch_size=batch_size if balance == "fixed" else None,
        **rest,
    )


def find_resources(
    source: Source | None,
    budgets: Mapping[str, int] | None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Return the names of a source's costs, in its own order.

    A source may have them as `resources`; else its first sample that can be probed tells. Reading
    that fails is tried again after `sleep(seconds)`.
    """
    if source is None:
        extra = tuple(name for name in budgets or {} if name not in DEFAULT_RESOURCES)
        return DEFAULT_RESOURCES + extra
    named = getattr(source, "resources", None)
    if named is not None:
        return tuple(named)
    reason = ""
    for index in range(min(len(source), TRIES)):
        try:
            found: Any = load_with_retries(partial(source.probe, index), sleep)
        except SampleError as error:
            reason = str(error)
        else:
            return tuple(found.cost)
    raise ValueError(f"none of the first {TRIES} samples can be measured, the last: {reason}")


def checked_max_errors(max_errors: float | None, on_error: str) -> float | None:
    """Return how many samples of an epoch may be left out; ValueError for what cannot be.

    >>> checked_max_errors(0.01, "skip")
    0.01
    """
    if max_errors is None:
        return None
    if on_error not in ("skip", "refill"):
        raise ValueError(f"max_errors={max_errors} counts samples that on_error='skip' leaves out")
    most = 1.0 if isinstance(max_errors, float) else math.inf
    if not 0 <= max_errors < most:
        raise ValueError(
            f"max_errors is {max_errors!r}: give a count, or a part of the samples such as 0.01"
        )
    return max_errors
