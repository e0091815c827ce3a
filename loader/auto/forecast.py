"""Says in a line at start what was found, and what the plan does for the samples measured.

The line has the step's time, waiting and memory, on rank 0, with the costs that `auto` has found.
"""

import logging

from ...balancer.planning.forecast import Outlook
from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.last_step import last_kept
from ...balancer.planning.problem.options import LLM
from ...balancer.protocol.job_spec import LABEL_TOKENS
from ...workers.discovery.costs import is_of_text
from ...workers.discovery.fields import WHOLE
from .choice import Choice

logger = logging.getLogger(__name__)


def start_line(
    choice: Choice, plan: PlanConfig, told: Outlook | None, samples: int | None, batch_size: int,
    model: str = "",
) -> str:  # fmt: skip
    """Return the line: costs, work, forecast, what gains nothing, and what is left out.

    samples: of an epoch, None where only the workers know. model: whose times weigh the costs.
    """
    is_told = choice.varies or bool(choice.unrecognised)
    parts = [choice.costs_said, choice.work_said if is_told else ""]
    parts.append(f"times computed from {model}" if model else "")
    if told is not None:
        rows = plan.least_microbatches // plan.ranks
        # In one unit, random order's step: where batches are padded, ranks may wait a larger share
        # of a step that is much shorter, and still wait less.
        resource, largest = next(iter(told.largest.items()))
        works, waits = told.time * (1 - told.waiting), told.time * told.waiting
        parts.append(
            f"step {told.time:.2f} of random order's: ranks work {works:.2f} and wait "
            f"{waits:.2f} instead of {1 - told.waited:.2f} and {told.waited:.2f}; largest "
            f"microbatch {largest:,} {_unit(choice, resource)} instead of "
            f"{told.largest_random[resource]:,} "
            f"(forecast from {told.samples} samples for {plan.ranks} ranks x {rows} microbatches)"
        )
    if not choice.varies:
        parts.append(f"microbatches of {batch_size} in the reference order")
        if choice.unrecognised:
            parts.append('if you know what batches are, say work="padded" or work="packed"')
    elif told is None:
        parts.append("no forecast")
    is_one = plan.equal_counts and plan.least_microbatches == plan.ranks and plan.mode == "exact"
    if is_one and choice.padded:
        parts.append(
            'one padded microbatch a step of equal counts cannot gain: counts="free" with weights '
            'would, or a larger accumulate, or mode="window"'
        )
    if samples is not None and plan.mode == "exact":
        rest = samples % plan.samples_per_step
        if left := rest - last_kept(plan, rest):
            parts.append(f"the last {left:,} of {samples:,} samples of each epoch stay out")
    return 'balance="auto": ' + "; ".join(part for part in parts if part)


def _unit(choice: Choice, resource: str) -> str:
    """Return what the numbers of a resource are: of a field "images", say, elements."""
    fields = {each.name: each.field for each in choice.found.found} if choice.found else {}
    kind = fields[resource].kind if resource in fields else "tiles"
    unit = "characters" if kind == "text" else WHOLE[kind]
    return resource if resource == LLM or unit in ("tiles", resource) else f"{unit} of {resource}"


def warn_of_means(choice: Choice, balance: Balance) -> None:
    """Warn where a mean over a microbatch's tokens weighs short samples more.

    That is where tokens are padded, or texts of which they are made; others only if samples have
    labels for each of their parts.
    """
    found = choice.found
    texts = [each.name for each in found.found if is_of_text(each)] if found else []
    has_tokens = {LLM, *texts} & {*choice.padded} or LABEL_TOKENS in choice.resources
    if balance.counts == "free" or not (choice.padded and has_tokens):
        return
    logger.warning(
        "microbatches have samples of like lengths and equal counts: a loss that is a mean over a "
        "microbatch's tokens weighs the tokens of short samples more; exact is the sum of losses "
        "in `for batch, info in loader.with_info(): cp.scale_loss(loss_sum, info).backward()`, "
        'with Balance("auto", counts="free") if you like; Fabric takes with_info(), too: '
        "fabric.setup_dataloaders(loader.with_info())"
    )
