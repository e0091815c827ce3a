"""Forecasts what a plan does for the samples that were measured, and says it in a line at start.

The line has the step's time, waiting and memory, on rank 0, with the costs that `auto` has found.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.planner import make_planner
from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig, Window
from ...balancer.planning.problem.last_step import last_kept
from ...balancer.planning.problem.options import LLM
from ...balancer.planning.problem.work import padded_loads, sample_times
from ...balancer.protocol.job_spec import LABEL_TOKENS
from ...workers.discovery.costs import is_of_text
from ...workers.discovery.fields import WHOLE
from .choice import Choice

logger = logging.getLogger(__name__)
# Samples that are planned for a forecast, and steps of them.
MOST_SAMPLES, MOST_STEPS = 4096, 8


@dataclass(frozen=True, slots=True)
class Outlook:
    """Planned steps, compared with random order's microbatches of batch_size samples.

    time: of a step, over random order's. waiting and waited: the share of their time that ranks
    wait, now and in random order. largest and largest_random: the largest microbatch, in units of
    `resource`. samples: how many were measured. padding, padding_random: the share of the work that
    is padding.
    """

    time: float
    waiting: float
    waited: float
    resource: str
    largest: int
    largest_random: int
    samples: int
    padding: float = 0.0
    padding_random: float = 0.0


def forecast(
    config: PlanConfig, costs: Int64, batch_size: int, most_steps: int = MOST_STEPS
) -> Outlook | None:
    """Return the forecast from the costs (n, resources) of some samples; None without any work.

    Where a step has more samples than were measured, it is made of them again and again.
    """
    if config.oversize == "error":  # the run says so, when the sample's turn comes
        config = replace(config, oversize="refuse")
    now, before, tops, filled = [], [], [], 0.0
    rows, column = config.least_microbatches // config.ranks, config.balanced_columns[0]
    planner = make_planner(config)
    for step, some in enumerate(_steps(costs, config.samples_per_step, config.seed, most_steps)):
        random, planned = np.arange(len(some)) // batch_size, np.full(len(some), -1)
        for batch in planner.plan(Window(0, step, 0, some, last=True)).batches[:1]:
            for number, one in enumerate(m for r in zip(*batch.ranks, strict=True) for m in r):
                planned[list(one.ordinals)] = number
            now.append(_times(config, some, planned, rows))
            before.append(_times(config, some, random, rows))
            groups, padded = config.ranks * rows, config.padded_columns
            loads = (padded_loads(some, of, groups, padded) for of in (planned, random))
            tops.append([int(each[:, column].max()) for each in loads])
            # each sample alone has no padding
            filled += _loads(config, some, np.arange(len(some)), len(some)).sum()
    if not before or not np.sum(before):
        return None
    once = config.waits == "step"
    took, waiting = _step_and_waiting(np.array(now), once)
    took_random, waited = _step_and_waiting(np.array(before), once)
    largest, largest_random = np.max(tops, axis=0).tolist()
    name = config.resources[column]
    padding, padding_random = (1 - filled / np.sum(each) for each in (now, before))
    return Outlook(
        took / took_random, waiting, waited, name, largest, largest_random, len(costs),
        float(padding), float(padding_random),
    )  # fmt: skip


def _steps(costs: Int64, size: int, seed: int, most: int) -> Iterator[Int64]:
    """Yield the costs of a few steps."""
    count = len(costs)
    if size > count:
        order = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, count, most * size)
    else:
        order = np.arange(count)
    steps = max(1, min(most, MOST_SAMPLES // size, len(order) // size))
    for step in range(steps):
        yield np.ascontiguousarray(costs[order[step * size : (step + 1) * size]])


def _times(config: PlanConfig, costs: Int64, group_of: Int64, rows: int) -> Int64:
    """Return the times (rows, ranks) of a step's microbatches, in the planner's unit."""
    return _loads(config, costs, group_of, config.ranks * rows).reshape(rows, config.ranks)


def _loads(config: PlanConfig, costs: Int64, group_of: Int64, groups: int) -> Int64:
    """Return the times (groups,) of groups of samples, in the planner's unit."""
    columns = config.balanced_columns
    times = sample_times(config.only(columns), np.ascontiguousarray(costs[:, columns]))
    parts = np.stack([times.padded, times.added], axis=1)
    both: Int64 = padded_loads(parts, group_of, groups, (0,)).sum(axis=1)
    return both


def _step_and_waiting(times: Int64, once: bool) -> tuple[float, float]:
    """Return the time of steps (steps, rows, ranks), and the share of it that ranks wait.

    once: whether ranks wait for each other once a step, not after every row.
    """
    whole = float((times.sum(axis=1).max(axis=1) if once else times.max(axis=2)).sum())
    return whole, 1 - float(times.sum()) / (whole * times.shape[2])


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
        works, waits = told.time * (1 - told.waiting), told.time * told.waiting
        parts.append(
            f"step {told.time:.2f} of random order's: ranks work {works:.2f} and wait "
            f"{waits:.2f} instead of {1 - told.waited:.2f} and {told.waited:.2f}; largest "
            f"microbatch {told.largest:,} {_unit(choice, told.resource)} instead of "
            f"{told.largest_random:,} "
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
