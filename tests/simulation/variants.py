"""The variants of job and cluster that trials go through, by name."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from counterpoise.balancer.coordinator.run.planning_feed import WindowPlanner
from counterpoise.balancer.planning.planner import WINDOW_STEPS, make_planner
from counterpoise.balancer.planning.planner import Planner as RealPlanner
from counterpoise.balancer.planning.problem.config import PlanConfig, Planned, Window
from counterpoise.balancer.protocol.job_spec import BUFFER_BYTES, JobSpec
from tests.simulation.faults import CUT_OFF, LONG_HANG, LONG_SLOW, RANKS_DIE, SLOW_RANK
from tests.simulation.world import ClusterSettings

COUNT = 208
RANKS = 2
WORKERS = 3
LEASE_S = 5.0
LONG_LEASE_S = 120.0
HEARTBEAT_TIMEOUT_S = 3.0
PLAN = PlanConfig(
    ranks=RANKS,
    samples_per_step=16,
    accumulate="auto",
    resources=("tiles", "tokens", "label_tokens"),
    budgets=(12, 900, None),
    grouping="isf",
    partition="greedy",
    seed=3,
)
FOUR_EACH = replace(PLAN, accumulate=4, budgets=(None, None, None))
IN_WINDOWS = replace(PLAN, mode="window", accumulate=3)
WHOLE_EPOCH = replace(PLAN, mode="epoch", accumulate=3)


def _cost(index: int) -> tuple[int, ...]:
    return index * 7919 % 9, 20 + index * 104729 % 480, 1 + index % 50


# All payloads fit into it, and are not so small that more steps than the usual are planned ahead.
BUDGET_BYTES = 1 << 16
PLAIN = ClusterSettings(
    job=JobSpec(plan=PLAN, lease_s=LEASE_S, buffer_bytes=BUDGET_BYTES),
    count=COUNT,
    cost=_cost,
    workers=WORKERS,
    processes=((0,), (1,)),
    open_s=0.1,
    heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
)


def _job(settings: ClusterSettings, **changes: object) -> ClusterSettings:
    return replace(settings, job=replace(settings.job, **changes))  # type: ignore[arg-type]


def _with_holes(settings: ClusterSettings) -> ClusterSettings:
    broken, unreadable = frozenset({3, 50}), frozenset({20, 21, 149})
    return replace(_job(settings, on_error="skip"), broken=broken, unreadable=unreadable)


ONE_PROCESS = replace(PLAIN, processes=((0, 1),))
SETTINGS: dict[str, ClusterSettings] = {
    "plain": PLAIN,
    "fixed": _job(PLAIN, plan=FOUR_EACH),
    "skip": _with_holes(PLAIN),
    "poison": replace(_with_holes(PLAIN), deadly=frozenset({77})),
    "small": _job(_with_holes(PLAIN), buffer_bytes=1200),
    "decoded first": replace(PLAIN, decode_first=True),
    "one process": ONE_PROCESS,
    "two epochs": replace(PLAIN, epochs=2),
    # The trainer takes many microbatches at a time, and steps are planned as far ahead as they may.
    "far ahead": replace(_job(PLAIN, plan=FOUR_EACH, buffer_bytes=BUFFER_BYTES), prefetch=12),
    "brought": replace(PLAIN, fixed_job=False),
    # Payloads are larger than the probes report, and the front larger than the budget.
    "misjudged": replace(_job(PLAIN, buffer_bytes=500), probed_bytes=10),
    # The trainer leaves an epoch in the middle for the next, and is restarted in one of them.
    "left early": replace(PLAIN, epochs=2, leaves_at=2, prefetch=6),
    # Messages arrive twice, at any time, and nothing else goes wrong: no work is done twice.
    "all doubled": replace(PLAIN, duplicate=0.3),
    # Workers are slow, and nothing else goes wrong: no lease runs out.
    "slow": PLAIN,
    # Leases outlast the trial, as a job's own do: what is lost must come back before they run out.
    "long leases": _job(PLAIN, lease_s=LONG_LEASE_S),
    # One worker hangs for longer than a lease, or all do; the rest is harmless.
    "long hang": PLAIN,
    # One worker hangs and never comes back, and another dies: what it has may be suspected.
    "hangs for good": replace(PLAIN, hangs=((2.0, 0),)),
    "windows": _job(PLAIN, plan=IN_WINDOWS, buffer_bytes=BUFFER_BYTES),
    "windows, skip": _with_holes(_job(PLAIN, plan=IN_WINDOWS)),
    # The trainer goes back to older and older ledgers, inside steps and windows, with holes.
    "back and back": _with_holes(_job(ONE_PROCESS, plan=IN_WINDOWS)),
    # Epochs of 39 and of 40 steps; what ranks ask for ahead ends with the first, or not much later.
    "whole epochs": replace(
        _job(PLAIN, plan=replace(WHOLE_EPOCH, accumulate=1)), epochs=2, prefetch=2
    ),
}
VARIANTS = tuple(SETTINGS)
# Jobs whose ranks are shared by several processes; they have seeds of their own.
SHARED_SETTINGS: dict[str, ClusterSettings] = {
    "shared": replace(PLAIN, sharers=2),
    "shared, in step": replace(
        _job(PLAIN, plan=replace(FOUR_EACH, accumulate=1)), sharers=2, prefetch=1
    ),
    "shared by three, late": replace(PLAIN, sharers=3, late_s=2.0),
    "shared, fixed, late": replace(_job(PLAIN, plan=FOUR_EACH), sharers=2, late_s=1.0, prefetch=6),
    "shared, skip": replace(_with_holes(PLAIN), sharers=2, late_s=1.5),
    "shared, small": replace(_job(_with_holes(PLAIN), buffer_bytes=1200), sharers=2),
    "shared, two epochs": replace(PLAIN, sharers=2, epochs=2, late_s=1.0),
    "shared, windows, skip": replace(_with_holes(_job(PLAIN, plan=IN_WINDOWS)), sharers=2),
    "shared, brought": replace(PLAIN, sharers=2, fixed_job=False),
    # Some processes die, of one rank or of several, and the trainer is restarted.
    "shared, some die": replace(PLAIN, sharers=3, late_s=0.5),
    "shared, some die, skip": replace(_with_holes(PLAIN), sharers=2, prefetch=6),
    # Some train slowly: the others wait when they are as far ahead as they prefetch.
    "shared, apart": replace(_job(PLAIN, plan=FOUR_EACH), sharers=3, prefetch=1),
    # Some cannot be reached for a while, and come back.
    "shared, cut off": replace(PLAIN, sharers=2, prefetch=1),
    # They come when much of the epoch is over, and in an epoch that others have left.
    "shared, very late": replace(PLAIN, sharers=2, late_s=8.0),
    "shared, left early": replace(PLAIN, sharers=2, late_s=1.0, epochs=2, leaves_at=2),
    # No microbatch may be empty: some get samples of others, and some steps are left out.
    "shared, never empty": replace(
        _with_holes(_job(PLAIN, plan=replace(PLAN, samples_per_step=8, empty_microbatches=False))),
        sharers=2,
        late_s=0.5,
    ),
}
SHARED_VARIANTS = tuple(SHARED_SETTINGS)
# Jobs whose ranks pull payloads from workers; a pull that is lost is work that is done twice.
PULLED_NAMES = (
    *("plain", "skip", "poison", "small", "decoded first", "one process", "two epochs"),
    *("far ahead", "brought", "left early", "slow", "long leases", "long hang"),
    *("hangs for good", "windows, skip", "back and back", "shared", "shared by three, late"),
    *("shared, small", "shared, some die", "shared, two epochs"),
)
PULLED_SETTINGS: dict[str, ClusterSettings] = {
    f"pulled, {name}": replace((SETTINGS | SHARED_SETTINGS)[name], pulls=True)
    for name in PULLED_NAMES
}
PULLED_VARIANTS = tuple(PULLED_SETTINGS)
# Kinds of the first faults, where they are not all drawn.
FAULT_KINDS = {
    "long leases": ("drop", "crash worker", "drop"),
    "all doubled": ("duplicate",) * 5,
    "slow": (LONG_SLOW,) * 5,
    "hangs for good": ("crash worker",),
    "left early": ("crash trainer",),
    "long hang": (LONG_HANG, "slow", "delay", "duplicate", "disk full"),
    "back and back": ("crash trainer",) * 3,
    "shared, some die": (RANKS_DIE, RANKS_DIE),
    "shared, some die, skip": (RANKS_DIE, "crash balancer"),
    "shared, apart": (SLOW_RANK,) * 3,
    "shared, cut off": (CUT_OFF, CUT_OFF, "slow", "duplicate", "crash worker"),
}

FAULT_KINDS |= {
    f"pulled, {name}": FAULT_KINDS[name] for name in PULLED_NAMES if name in FAULT_KINDS
}


@cache
def settings_of(variant: str) -> ClusterSettings:
    """Return the settings of a variant."""
    every = SETTINGS | SHARED_SETTINGS | PULLED_SETTINGS
    return replace(every[variant], plan_with=_planners())


class _ShortWindows(RealPlanner):
    """Plans windows of a few steps: the planner would plan such a short epoch at once."""

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""
        return (WINDOW_STEPS + 1) * self.config.samples_per_step


class _Remembering:
    """A planner that plans each window once: the costs of a variant never differ."""

    def __init__(self, planner: WindowPlanner) -> None:
        self._planner = planner
        self._plans: dict[tuple[int, int, int, bool, bytes], Planned] = {}

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned:
        """Return the steps of a window."""
        costs = window.costs.tobytes()
        shown = window.epoch, window.step, window.start, window.last, costs
        if shown not in self._plans:
            self._plans[shown] = self._planner.plan(window)
        return self._plans[shown]


def _planners() -> Callable[[PlanConfig], WindowPlanner]:
    """Return a function that makes planners, one per configuration."""
    kept: dict[PlanConfig, WindowPlanner] = {}

    def plan_with(config: PlanConfig) -> WindowPlanner:
        if config not in kept:
            make = _ShortWindows if config.mode == "window" else make_planner
            kept[config] = _Remembering(make(config))
        return kept[config]

    return plan_with
