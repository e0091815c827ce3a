"""Kernel times that differ from the plan, and replanning from measured times.

There are two kinds of error. Jitter: each kernel of each step is off by a new random factor; no
plan can know it, but guards leave room. Drift: from some step on, a rank's kernels of a kind are
permanently slower or faster; a trace of a few steps shows it, and replanning between two steps
adapts to it. Factors are log-normal with mean 1 and the given coefficient of variation.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterpoise.sched.bubble_filling.choose import fill_plan
from counterpoise.sched.bubble_filling.encoder_plans import Host
from counterpoise.sched.bubble_filling.gaps import Ints
from counterpoise.sched.bubble_filling.instance import FilledSchedule, Work
from counterpoise.sched.bubble_filling.search import Effort

from .replay import Kernels, host_kernels_graph, measured_host

Floats = NDArray[np.float64]
_KINDS = 5


def factors(cv: float, shape: tuple[int, ...], seed: int) -> Floats:
    """Return log-normal factors of mean 1. Raises ValueError for a negative variation."""
    if cv < 0:
        raise ValueError(f"the variation is {cv}; give 0 or more")
    spread = np.sqrt(np.log1p(cv * cv))
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(np.exp(spread * drawn - spread * spread / 2))


def drifted(kernels: Kernels, ns: Ints, cv: float, seed: int) -> Ints:
    """Return times after a drift: one factor for each rank and kind of kernel."""
    ranks = int(kernels.rank.max()) + 1
    table = factors(cv, (ranks, _KINDS), seed)
    return _times(ns, table[kernels.rank, kernels.what])


def jittered(ns: Ints, cv: float, seed: int) -> Ints:
    """Return times of one step with jitter: one factor for each kernel."""
    return _times(ns, factors(cv, ns.shape, seed))


def _times(ns: Ints, factor: Floats) -> Ints:
    return np.maximum(1, np.rint(ns * factor)).astype(np.int64)


def replan(
    host: Host,
    filled: FilledSchedule,
    kernels: Kernels,
    traces: Sequence[Ints],
    effort: Effort | None = None,
) -> tuple[Host, FilledSchedule]:
    """Plan again from the kernel times of some steps, each in the order of `kernels`.

    The host's kernels take the mean of their own times, an encoder kernel the mean over a rank's
    microbatches. Returns the host as measured and the schedule planned on it.
    """
    mean = np.rint(np.mean(traces, axis=0)).astype(np.int64)
    measured = measured_host(host, mean[: kernels.host])
    problem = filled.problem
    forward, backward = _guest_means(filled, mean[kernels.host :])
    new = replace(
        problem,
        gaps=measured.gaps,
        forward=replace(problem.forward, ns=forward),
        backward=replace(problem.backward, ns=backward),
    )
    return measured, fill_plan(new, effort)


def _guest_means(filled: FilledSchedule, ns: Ints) -> tuple[Ints, Ints]:
    """Return mean measured times per rank and kernel; planned ones where none were measured."""
    problem = filled.problem
    ranks = len(problem.gaps.ranks)
    sums = [np.zeros((ranks, len(w.resource))) for w in (problem.forward, problem.backward)]
    counts = np.zeros(ranks)
    at = 0
    for p in filled.pipelines:
        for total, starts in zip(sums, (p.forward, p.backward), strict=True):
            part = ns[at : at + starts.size].reshape(starts.shape)
            at += starts.size
            total[list(p.ranks)] += part.sum(axis=0)
        counts[list(p.ranks)] += len(p.microbatches)
    return (
        _means(problem.forward, sums[0], counts),
        _means(problem.backward, sums[1], counts),
    )


def _means(work: Work, total: Floats, counts: Floats) -> Ints:
    planned = np.broadcast_to(work.ns.mean(axis=1), total.shape)
    mean = np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], planned)
    return np.maximum(1, np.rint(mean)).astype(np.int64)[:, None, :]


def host_only_ns(host: Host, ns: Ints) -> int:
    """Return the step's length without encoders, with these times of the host's kernels."""
    alone, _ = host_kernels_graph(host)
    return alone.step_ns(ns[: alone.host])
