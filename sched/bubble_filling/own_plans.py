"""A plan of its own for each encoder: PP, TP and recomputation (Optimus, 2025, section 4.4).

The paper applies a plan to each encoder independently and then schedules their kernels as if they
were one encoder's. Encoders of different plans have different pipelines, so here the one with most
work fills the bubbles first, and the next ones what it leaves; microbatches are equal, so each
encoder's result for the language model's i-th microbatch is that microbatch's. All gather their
parameters before the step and scatter their gradients after it: each waits for all.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from .bound import hidden_bound
from .choose import Chosen
from .encoder_plans import (
    WARMUPS,
    EncoderPlan,
    Host,
    encoder_collectives,
    host_step,
    memory,
    plan_problem,
    plans,
)
from .gaps import FREE, Gaps, Ints, Stretches, fill_holes, running
from .instance import FilledSchedule
from .search import fill_bubbles
from .setup import FillSetup, Splitting, total_ns

# A stretch in which an encoder's kernel runs already: the next encoder can use nothing of it.
BUSY = 3


@dataclass(frozen=True, slots=True, eq=False)
class OwnPlans:
    """Filled plans, one for each encoder, in the order of filling. `encoders`: their numbers."""

    encoders: tuple[int, ...]
    parts: tuple[Chosen, ...]

    @property
    def step_ns(self) -> int:
        """Return the whole step."""
        return self.parts[-1].filled.step_ns


def scan_each(
    setup: FillSetup,
    best_ns: int,
    *,
    splittings: Sequence[Splitting | None] = (None,),
    most_copies: float = float("inf"),
) -> OwnPlans | None:
    """Return the best plans of a step shorter than `best_ns`, or None if there are none.

    `splittings`, `most_copies`: as in `scan`. Raises ValueError for one encoder.
    """
    count = len(next(iter(setup.encoders.values())))
    if count < 2:
        raise ValueError("one encoder has one plan; own plans are for two or more")
    alone = [
        replace(setup, encoders={w: (row[n],) for w, row in setup.encoders.items()})
        for n in range(count)
    ]
    order = sorted(range(count), key=lambda n: -_work_ns(alone[n]))
    jobs = [alone[n] for n in order]
    # A step is the language model's with all collectives at its ends, so their sum orders hosts.
    queue = []
    host_of = cache(partial(_host, setup))
    for warmup in WARMUPS[: min(2, setup.chunks)]:
        base = host_of(warmup, (0, 0)).gaps.step_ns
        each = [[plan for plan in plans(job) if plan.warmup == warmup] for job in jobs]
        for combination in itertools.product(*each):
            sums = _collectives(jobs, combination)
            if base + sum(sums) < best_ns:
                queue.append((base + sum(sums), warmup, sums, combination))
    queue.sort(key=lambda one: one[0])
    found: OwnPlans | None = None
    for least_ns, warmup, sums, combination in queue:
        for how in splittings:
            if least_ns >= best_ns:
                return found
            host = host_of(warmup, sums)
            parts = _filled(jobs, combination, host, sums, how, most_copies, best_ns)
            if parts:
                found = OwnPlans(tuple(order), parts)
                best_ns = found.step_ns
    return found


def _work_ns(setup: FillSetup) -> int:
    (stack,) = setup.encoder_stacks(setup.tensor)
    return stack.layers * total_ns(stack.layer.forward + stack.layer.backward)


def _collectives(alone: Sequence[FillSetup], combination: Sequence[EncoderPlan]) -> tuple[int, int]:
    """Return the gathers and the scatters of all encoders."""
    each = [encoder_collectives(job, plan) for job, plan in zip(alone, combination, strict=True)]
    return sum(one[0] for one in each), sum(one[1] for one in each)


def _host(setup: FillSetup, warmup: str, sums: tuple[int, int]) -> Host:
    longer = replace(
        setup, gather_ns=setup.gather_ns + sums[0], scatter_ns=setup.scatter_ns + sums[1],
        encoder_gather_ns=0, encoder_scatter_ns=0,
    )  # fmt: skip
    plan = EncoderPlan(1, max(setup.encoders), warmup=warmup)
    return replace(host_step(longer, plan), encoder_ns=sum(sums))


def _filled(
    alone: Sequence[FillSetup],
    combination: Sequence[EncoderPlan],
    host: Host,
    sums: tuple[int, int],
    how: Splitting | None,
    most_copies: float,
    best_ns: int,
) -> tuple[Chosen, ...]:
    """Return every encoder's filled plan; nothing where they do not fit or are not better."""
    parts: list[Chosen] = []
    gaps, taken_bytes, copies = host.gaps, 0, 0.0
    for job, plan in zip(alone, combination, strict=True):
        job = replace(job, reserved_bytes=job.reserved_bytes + taken_bytes)
        need = memory(job, plan, host)
        copies += need.copies
        if copies > most_copies:
            return ()
        try:
            problem = plan_problem(
                _waiting(job, plan, sums), plan, replace(host, gaps=gaps), splitting=how
            )
            filled = fill_bubbles(problem)
        except ValueError:  # it does not fit the memory
            return ()
        if filled.step_ns >= best_ns:
            return ()
        filled = replace(filled, bound=hidden_bound(problem))
        parts.append(Chosen(plan, how, filled, replace(host, gaps=gaps), need))
        held = max(len(one.microbatches) for one in filled.pipelines)
        taken_bytes += need.states + held * need.per_microbatch
        gaps = left_over(filled)
    return tuple(parts)


def _waiting(job: FillSetup, plan: EncoderPlan, sums: tuple[int, int]) -> FillSetup:
    """Return the job whose encoder's collectives take as long as all encoders' together."""
    own = encoder_collectives(job, plan)
    gather, scatter = job.encoder_gather_ns, job.encoder_scatter_ns
    return replace(
        job,
        encoder_gather_ns=gather * sums[0] // own[0] if own[0] else 0,
        encoder_scatter_ns=scatter * sums[1] // own[1] if own[1] else 0,
    )


def left_over(filled: FilledSchedule) -> Gaps:
    """Return what a filled step leaves: its gaps without what kernels of an encoder occupy.

    Where a rank's tensor-parallel GPUs have different copies, none is free where one is not.
    """
    gaps, shift = filled.problem.gaps, filled.before_ns
    return Gaps(
        tuple(_left_on(filled, rank) for rank in range(len(gaps.ranks))),
        gaps.need_ns + shift,
        gaps.gradient_ns + shift,
        filled.step_ns,
        gaps.first_rank,
    )


def _left_on(filled: FilledSchedule, rank: int) -> Stretches:
    """Return a rank's stretches, those busy in which an encoder's kernel runs."""
    gaps, shift = filled.problem.gaps, filled.before_ns
    one = gaps.ranks[rank]
    own = [(p, p.ranks.index(rank)) for p in filled.pipelines if rank in p.ranks]
    begin = _joined([part[:, at] for p, at in own for part in (p.forward, p.backward)])
    done = _joined([part[:, at] for p, at in own for part in (p.forward_end, p.backward_end)])
    ends = [-shift, filled.step_ns - shift]
    edges = np.unique(np.concatenate((one.start, one.end, begin, done, ends)))
    low, high = edges[:-1], edges[1:]
    host = np.clip(np.searchsorted(one.start, low, side="right") - 1, 0, None)
    # Before and after the step of the language model everything is free.
    kind = np.where((low >= 0) & (high <= gaps.step_ns), one.kind[host], FREE)
    busy = running(begin, done, low)
    # Neighbours and overlapping copies are one stretch.
    first = np.append(True, ~(busy[1:] & busy[:-1]))
    kind = np.where(busy, BUSY, kind)[first]
    low, keep = low[first] + shift, kind != FREE
    high = np.append(low[1:], filled.step_ns)
    return fill_holes(low[keep], high[keep], kind[keep], filled.step_ns)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *(part.ravel() for part in parts)])
