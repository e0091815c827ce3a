"""Log once, on rank 0, the costs that `auto` has found and the plan that it makes."""

import logging

from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.last_step import last_kept
from ...balancer.protocol.job_spec import LABEL_TOKENS
from .choice import Choice
from .forecast import Outlook

logger = logging.getLogger(__name__)


def start_line(
    choice: Choice, plan: PlanConfig, told: Outlook | None, samples: int | None, batch_size: int,
    model: str = "",
) -> str:  # fmt: skip
    """Return the line: costs, work, forecast, what gains nothing, and what is left out.

    samples: of an epoch, None where only the workers know. model: whose times weigh the costs.
    """
    parts = [choice.costs_said, choice.work_said if choice.varies else ""]
    parts += [f"times computed from {model}" if model else "", _gain(plan, told)]
    if not choice.varies:
        parts.append(f"microbatches of {batch_size} in the reference order")
    if told is None and choice.varies:
        parts.append("no forecast")
    parts += [_gains_nothing(choice, plan), _left_out(plan, samples)]
    return 'balance="auto": ' + "; ".join(part for part in parts if part)


def warn_of_means(choice: Choice, balance: Balance) -> None:
    """Warn where a mean over a microbatch's tokens weighs short samples more."""
    if balance.counts == "free" or not choice.padded or LABEL_TOKENS not in choice.resources:
        return
    logger.warning(
        "microbatches have samples of like lengths and equal counts: a loss that is a mean over a "
        "microbatch's tokens weighs the tokens of short samples more; exact is the sum of losses "
        "in `for batch, info in loader.with_info(): cp.scale_loss(loss_sum, info).backward()`, "
        'with Balance("auto", counts="free") if you like'
    )


def _gain(plan: PlanConfig, told: Outlook | None) -> str:
    if told is None:
        return ""
    rows = plan.least_microbatches // plan.ranks
    # In one unit, random order's step: where batches are padded, ranks may wait a larger share of
    # a step that is much shorter, and still wait less.
    works, waits = told.time * (1 - told.waiting), told.time * told.waiting
    return (
        f"step {told.time:.2f} of random order's: ranks work {works:.2f} and wait {waits:.2f} "
        f"instead of {1 - told.waited:.2f} and {told.waited:.2f}; largest microbatch "
        f"{told.largest:,} {told.resource} instead of {told.largest_random:,} (forecast from "
        f"{told.samples} samples for {plan.ranks} ranks x {rows} microbatches)"
    )


def _gains_nothing(choice: Choice, plan: PlanConfig) -> str:
    is_one = plan.equal_counts and plan.least_microbatches == plan.ranks and plan.mode == "exact"
    if not (is_one and choice.padded):
        return ""
    return (
        'one padded microbatch a step of equal counts cannot gain: counts="free" with weights '
        'would, or a larger accumulate, or mode="window"'
    )


def _left_out(plan: PlanConfig, samples: int | None) -> str:
    if samples is None or plan.mode != "exact":
        return ""
    rest = samples % plan.samples_per_step
    left = rest - last_kept(plan, rest)
    if not left:
        return ""
    return f"the last {left:,} of {samples:,} samples of each epoch stay out"
