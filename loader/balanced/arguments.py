"""Checks the loader's keyword arguments and turns them into a plan configuration."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import COUNTED, OPTIONS, Waits
from ...balancer.protocol.job_spec import IN_BATCHES
from ...workers.sources.failures import load_with_retries
from ...workers.sources.interface import SampleError, Source

DEFAULT_RESOURCES = ("tiles", "tokens", "label_tokens")
# The first samples of a source may be broken; after this many we stop looking for one that is not.
TRIES = 100
Given = ParamSpec("Given")


def refuse_moved_arguments(init: Callable[Given, None]) -> Callable[Given, None]:
    """Make a constructor raise TypeError, with the new form, for an argument that is Balance's.

    A decorator instead of **arguments, so that the signature stays exact for editors and mypy.
    """
    owner = init.__qualname__.partition(".")[0]

    @functools.wraps(init)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> None:
        if moved := {name: kwargs[name] for name in OPTIONS if name in kwargs}:
            raise TypeError(_moved(owner, moved, kwargs.get("balance")))
        init(*args, **kwargs)

    return checked


def _moved(owner: str, moved: dict[str, Any], balance: object) -> str:
    grouping = {"grouping": balance} if isinstance(balance, str) else {}
    options = ", ".join(f"{name}={value!r}" for name, value in {**grouping, **moved}.items())
    return f"{owner} has no argument {', '.join(moved)} any more: write balance=Balance({options})"


def make_plan(
    balance: Balance,
    *,
    resources: tuple[str, ...],
    ranks: int,
    batch_size: int | None,
    drop_last: bool,
    empty_microbatches: bool,
) -> PlanConfig:
    """Return the plan configuration of a DataLoader.

    batch_size counts for the groupings that count samples. Without balance.samples_per_step a step
    has batch_size samples for every rank and microbatch. Raises ValueError for budgets of unknown
    resources and whatever PlanConfig refuses.
    """
    check_label_tokens(balance, resources)
    accumulate = 1 if balance.accumulate == "auto" else balance.accumulate
    return PlanConfig.from_balance(
        balance,
        ranks=ranks,
        resources=resources,
        samples_per_step=balance.samples_per_step or ranks * accumulate * (batch_size or 1),
        batch_size=batch_size if balance.grouping in COUNTED else None,
        drop_last=drop_last,
        empty_microbatches=empty_microbatches,
    )


def said_or_adopted(balance: Balance, waits: Waits | None) -> Balance:
    """Return a Balance with the waits that a framework says, where the user has not said any.

    They change nothing where a step has one microbatch, or a partition that does not look at them.
    """
    looks = balance.partition == "multi_resource" and balance.accumulate != 1
    return replace(balance, waits=waits) if balance.waits is None and looks else balance


def check_plan(
    balance: Balance, *, resources: tuple[str, ...], batch_size: int | None, drop_last: bool
) -> None:
    """Raise ValueError for what cannot be planned with any number of ranks."""
    make_plan(
        replace(balance, samples_per_step=None),
        resources=resources,
        ranks=1,
        batch_size=batch_size,
        drop_last=drop_last,
        empty_microbatches=True,
    )


def check_label_tokens(
    balance: Balance, resources: tuple[str, ...], has_batches: bool = True
) -> None:
    """Raise ValueError where nothing counts what is said to count label tokens.

    has_batches: whether there is a loader, which can count them in its batches.
    """
    counted = (*resources, IN_BATCHES) if has_batches else resources
    if balance.label_tokens not in (None, *counted):
        raise ValueError(
            f"label_tokens is {balance.label_tokens!r}, but samples cost {', '.join(resources)}: "
            "name one of these, or let cost() or probe() give it"
            + (', or count them in batches: label_tokens="batch"' if has_batches else "")
        )


def find_resources(
    source: Source | None,
    balance: Balance,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Return the names of a source's costs, in its own order.

    They are source.resources where it has them; otherwise those of the first sample that can be
    probed. A failed read is retried after `sleep(seconds)`. Without a source (workers elsewhere
    have it): the default resources, and any other that has a budget or counts label tokens.
    """
    if source is None:
        named = (*balance.budgets, *filter(None, [balance.label_tokens]))
        known = (*DEFAULT_RESOURCES, IN_BATCHES)
        extra = dict.fromkeys(name for name in named if name not in known)
        return (*DEFAULT_RESOURCES, *extra)
    offered = getattr(source, "resources", None)
    if offered is not None:
        return tuple(offered)
    reason = ""
    for index in range(min(len(source), TRIES)):
        try:
            found: Any = load_with_retries(functools.partial(source.probe, index), sleep)
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
