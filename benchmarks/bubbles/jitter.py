"""Measures filled schedules when kernels take other times than planned.

Three plans are compared: offline (never changed), guarded (planned on shorter bubbles), and
re-planned from measured steps.
"""

from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.bubbles.drift import drifted, host_only_ns, jittered, replan
from benchmarks.bubbles.replay import Kernels, filled_kernels
from counterpoise.sched.bubble_filling.choose import fill_plan, fitting, guarded
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.gaps import Ints
from counterpoise.sched.bubble_filling.instance import FilledSchedule
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.setup import Splitting

VARIATIONS = (0.0, 0.05, 0.1, 0.2, 0.3)
PLAN = EncoderPlan(stages=2, tensor=8)
GUARD_PERCENT = 10
GUARD_SLACK_NS = 2_000_000
# Measured steps that a new plan is made from, and the kernels' own noise in them.
TRACES, NOISE = 3, 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Runnable:
    """A schedule that can be replayed with any kernel times, and its kernels' planned times."""

    filled: FilledSchedule
    kernels: Kernels


def jitter_report(name: str = "3072", seeds: int = 4) -> dict[str, object]:
    """Return mean step times over the language model's own, less 1, by coefficient of variation.

    `drift`: a lasting factor for each rank and kind of kernel, with 2 % of noise from step to
    step; `jitter`: a new factor for every kernel in every step. `recovered`: the share of the time
    that a drift costs the offline plan which re-planning recovers.
    """
    setup = case_setup(name)
    host = host_step(setup)
    offline = _offline(host, name)
    tight = _guarded(host, name)
    drift = {str(cv): _drift(host, offline, tight, cv, seeds) for cv in VARIATIONS}
    jitter = {str(cv): _jitter(host, offline, tight, cv, seeds) for cv in VARIATIONS}
    at = drift["0.1"]
    return {
        "setting": name,
        "drift": drift,
        "jitter": jitter,
        "recovered_at_0.1": 1 - at["replanned"] / at["offline"] if at["offline"] else 1.0,
    }


def _offline(host: Host, name: str) -> Runnable:
    setup = case_setup(name)
    problem = plan_problem(setup, PLAN, host, splitting=fitting(setup)[0])
    filled = fill_plan(problem)
    return Runnable(filled, filled_kernels(host, filled))


def _guarded(host: Host, name: str) -> Runnable:
    """Return a plan made on shorter bubbles and earlier deadlines, of pieces that fit them."""
    setup = case_setup(name)
    size = fitting(setup)[0].longest_ns * (100 - GUARD_PERCENT) // 100 - GUARD_PERCENT * 100
    problem = plan_problem(setup, PLAN, host, splitting=Splitting(size))
    filled = fill_plan(guarded(problem, GUARD_PERCENT, GUARD_SLACK_NS))
    real = replace(filled, problem=problem)
    return Runnable(real, filled_kernels(host, real))


def _drift(
    host: Host, offline: Runnable, tight: Runnable, cv: float, seeds: int
) -> dict[str, float]:
    rows = []
    for seed in range(seeds):
        now = _drifted(offline, cv, seed)
        alone = host_only_ns(host, now)
        traces = [jittered(now, NOISE, 1000 * seed + at) for at in range(1, TRACES + 1)]
        moved, new = replan(host, offline.filled, offline.kernels, traces)
        again = Runnable(new, filled_kernels(moved, new))
        nominal = filled_kernels(host, replace(new, problem=offline.filled.problem)).ns
        rows.append(
            (
                offline.kernels.step_ns(now) / alone - 1,
                tight.kernels.step_ns(_drifted(tight, cv, seed)) / alone - 1,
                again.kernels.step_ns(drifted(again.kernels, nominal, cv, seed)) / alone - 1,
            )
        )
    means = [fmean(column) for column in zip(*rows, strict=True)]
    return dict(zip(("offline", "guarded", "replanned"), means, strict=True))


def _drifted(what: Runnable, cv: float, seed: int) -> Ints:
    return drifted(what.kernels, what.kernels.ns, cv, seed)


def _jitter(
    host: Host, offline: Runnable, tight: Runnable, cv: float, seeds: int
) -> dict[str, float]:
    rows = []
    for seed in range(seeds):
        now = jittered(offline.kernels.ns, cv, seed)
        alone = host_only_ns(host, now)
        close = jittered(tight.kernels.ns, cv, seed)
        rows.append(
            (
                offline.kernels.step_ns(now) / alone - 1,
                tight.kernels.step_ns(close) / host_only_ns(host, close) - 1,
            )
        )
    means = [fmean(column) for column in zip(*rows, strict=True)]
    return dict(zip(("offline", "guarded"), means, strict=True))
