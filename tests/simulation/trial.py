"""Trials: an epoch with faults must deliver what one without faults does.

A seed decides everything: the kind of job (one of a few variants), the faults, every delay. An
epoch without faults delivers the same for all seeds of a variant, and is run once.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tests.simulation.cluster import Simulation
from tests.simulation.faults import Fault, draw_faults
from tests.simulation.rank import party_name
from tests.simulation.variants import COUNT, FAULT_KINDS, LEASE_S, VARIANTS, WORKERS, settings_of
from tests.simulation.world import SimulationResult

FAULTS = 5
# Faults begin within this time: about as long as an epoch takes.
WITHIN_S = 6.0
# After the last fault a run may take this many leases longer than one without faults.
LEASES_TO_END = 3
# Where ranks pull, that goes wrong to the end, and each time costs a decode.
LEASES_TO_PULL = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial; the run is right if `wrong` is empty."""

    seed: int
    variant: str
    faults: tuple[Fault, ...]
    lost: int
    duplicated: int
    mismatch: bool
    redone: int
    expired: int
    stuck: bool
    trouble: str
    trace: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """True if it ended too early, or did work that was not needed."""
        early = bool(self.trouble) and not self.stuck
        return early or self.redone > 0 or self.expired > 0

    @property
    def wrong(self) -> str:
        """The deviations from a run without faults, in a few words."""
        found = {
            "stuck": self.stuck,
            f"{self.lost} lost": self.lost,
            f"{self.duplicated} twice": self.duplicated,
            "other batches": self.mismatch,
            f"{self.redone} decoded again": self.redone,
            f"{self.expired} leases ran out": self.expired,
            self.trouble: self.trouble and not self.stuck,
        }
        return ", ".join(words for words, is_so in found.items() if is_so)


def trial(seed: int, traced: bool = False, variants: Sequence[str] = VARIANTS) -> Verdict:
    """Run one seed, of one of these variants."""
    variant = variants[seed % len(variants)]
    settings = settings_of(variant)
    source = random.Random(seed)
    trainer = [
        party_name(ranks[0], sharer)
        for sharer in range(settings.sharers)
        for ranks in settings.processes
    ]
    kinds = FAULT_KINDS.get(variant, ())
    faults = draw_faults(source, FAULTS, WORKERS, trainer, WITHIN_S, kinds)
    reference = _reference(variant)
    over = max(fault.end for fault in faults)
    leases = LEASES_TO_END + LEASES_TO_PULL * settings.pulls
    limit_s = over + reference.seconds + leases * LEASE_S
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
        redone=outcome.leased - COUNT if variant == "all doubled" else 0,
        expired=outcome.expired if variant == "slow" else 0,
        stuck=outcome.stuck,
        trouble=outcome.trouble,
        trace=tuple(outcome.trace),
    )


def _agree(outcome: SimulationResult, reference: SimulationResult) -> bool:
    """Return whether the right batches were delivered, in order, as far as the run got."""
    return all(
        _same(outcome.delivered[rank], reference.delivered[rank], outcome.trouble)
        and _same(outcome.details[rank], reference.details[rank], outcome.trouble)
        for rank in reference.delivered
    )


def _same(given: Sequence[object], due: Sequence[object], trouble: str) -> bool:
    count = len(given) if trouble else len(due)
    return [str(each) for each in given] == [str(each) for each in due[:count]]


def _keys(outcome: SimulationResult) -> Counter[tuple[int, str]]:
    """Count what was delivered, by epoch and key."""
    return Counter(
        (int(payload.partition(b"/")[0]), key)
        for given in outcome.delivered.values()
        for _, _, keys, payloads in given
        for key, payload in zip(keys, payloads, strict=True)
    )


@cache
def _reference(variant: str) -> SimulationResult:
    # Each epoch is measured, as by a balancer that was started again: that decides how long it may
    # take, and costs that are kept must not change what is delivered.
    settings = replace(settings_of(variant), keeps_costs=False)
    outcome = Simulation(settings, seed=0).run()
    if outcome.trouble:
        raise RuntimeError(f"without faults the variant {variant!r} fails: {outcome.trouble}")
    return outcome
