"""Trials of the simulated cluster: an epoch with faults must deliver what one without does.

A seed decides everything: which kind of job (of a few variants), which faults, every delay. What an
epoch without faults delivers is the same for all seeds of a variant, and is found out once.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from .feed import Planner
from .job import Job
from .plan import PlanConfig, Planned, Window
from .planner import make_planner
from .simulation import Simulation
from .simulation_faults import Fault, draw_faults
from .simulation_world import Outcome, Settings

COUNT = 208
RANKS = 2
WORKERS = 3
FAULTS = 5
LEASE_S = 5.0
SILENCE_S = 3.0
# Faults begin within this time: about as long as an epoch takes.
WITHIN_S = 6.0
# After the last fault a run may take so many leases longer than one without faults.
LEASES_TO_END = 3

VARIANTS = (
    "plain", "fixed", "skip", "poison", "small", "decoded first", "one process", "two epochs",
    "far ahead", "brought",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial found; the run is right if `wrong` is empty."""

    seed: int
    variant: str
    faults: tuple[Fault, ...]
    lost: int
    duplicated: int
    mismatch: bool
    stuck: bool
    trouble: str
    trace: tuple[str, ...]

    @property
    def wrong(self) -> str:
        """Say what is wrong, in a few words."""
        found = {
            "stuck": self.stuck,
            f"{self.lost} lost": self.lost,
            f"{self.duplicated} twice": self.duplicated,
            "other batches": self.mismatch,
            self.trouble: self.trouble and not self.stuck,
        }
        return ", ".join(words for words, so in found.items() if so)


def trial(seed: int, traced: bool = False) -> Verdict:
    """Run one seed."""
    variant = VARIANTS[seed % len(VARIANTS)]
    settings = _settings(variant)
    source = random.Random(seed)
    firsts = tuple(ranks[0] for ranks in settings.processes)
    faults = draw_faults(source, FAULTS, WORKERS, firsts, WITHIN_S)
    reference = _reference(variant)
    over = max(fault.over for fault in faults)
    limit_s = over + reference.seconds + LEASES_TO_END * LEASE_S
    faulty = replace(settings, faults=faults, limit_s=limit_s)
    outcome = Simulation(faulty, seed, traced).run()
    keys, expected = _keys(outcome), _keys(reference)
    return Verdict(
        seed=seed,
        variant=variant,
        faults=faults,
        lost=(expected - keys).total() if not outcome.trouble else 0,
        duplicated=(keys - expected).total(),
        mismatch=not _agree(outcome, reference),
        stuck=outcome.stuck,
        trouble=outcome.trouble,
        trace=tuple(outcome.trace),
    )


def _agree(outcome: Outcome, reference: Outcome) -> bool:
    """Whether all that was delivered is what was to be, in its order, as far as it got."""
    return all(
        _same(outcome.delivered[rank], reference.delivered[rank], outcome.trouble)
        and _same(outcome.weights[rank], reference.weights[rank], outcome.trouble)
        for rank in reference.delivered
    )


def _same(given: Sequence[object], due: Sequence[object], trouble: str) -> bool:
    so_far = len(given) if trouble else len(due)
    return [str(each) for each in given] == [str(each) for each in due[:so_far]]


def _keys(outcome: Outcome) -> Counter[tuple[int, str]]:
    """Count what was delivered, by epoch and key."""
    return Counter(
        (int(payload.partition(b"/")[0]), key)
        for given in outcome.delivered.values()
        for _, _, keys, payloads in given
        for key, payload in zip(keys, payloads, strict=True)
    )


@cache
def _reference(variant: str) -> Outcome:
    outcome = Simulation(_settings(variant), seed=0).run()
    if outcome.trouble:
        raise RuntimeError(f"without faults the variant {variant!r} fails: {outcome.trouble}")
    return outcome


def _cost(index: int) -> tuple[int, ...]:
    return index * 7919 % 9, 20 + index * 104729 % 480, 1 + index % 50


class _Remembering:
    """A planner that plans each window once: the costs of a variant never differ."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._plans: dict[tuple[int, int, int], Planned] = {}

    @property
    def window_samples(self) -> int:
        """How many ordinals to show at once."""
        return self._planner.window_samples

    def plan(self, window: Window) -> Planned:
        """Return the steps of a window."""
        place = window.epoch, window.step, window.start
        if place not in self._plans:
            self._plans[place] = self._planner.plan(window)
        return self._plans[place]


@cache
def _planner(config: PlanConfig, variant: str) -> Planner:  # noqa: ARG001
    return _Remembering(make_planner(config))


@cache
def _settings(variant: str) -> Settings:
    plan = PlanConfig(
        ranks=RANKS,
        samples_per_step=16,
        accumulate=4 if variant in ("fixed", "far ahead") else "auto",
        resources=("tiles", "tokens", "label_tokens"),
        budgets=(None, None, None) if variant in ("fixed", "far ahead") else (12, 900, None),
        grouping="isf",
        partition="greedy",
        seed=3,
    )
    holes = variant in ("skip", "poison", "small")
    job = Job(
        plan=plan,
        on_error="skip" if holes else "raise",
        buffer_bytes=1200 if variant == "small" else 1 << 30,
        lease_s=LEASE_S,
    )
    return Settings(
        job=job,
        count=COUNT,
        cost=_cost,
        workers=WORKERS,
        processes=((0, 1),) if variant == "one process" else ((0,), (1,)),
        prefetch=12 if variant == "far ahead" else 2,
        broken=frozenset({3, 50}) if holes else frozenset(),
        unreadable=frozenset({20, 21, 149}) if holes else frozenset(),
        deadly=frozenset({77}) if variant == "poison" else frozenset(),
        decode_first=variant == "decoded first",
        epochs=2 if variant == "two epochs" else 1,
        silence_s=SILENCE_S,
        fixed_job=variant != "brought",
        plan_with=lambda config: _planner(config, variant),
    )
