"""Compare a measured step with a simulated one, kind of pass by kind of pass."""

from collections import Counter
from dataclasses import dataclass

from .measured import compute_slots
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class KindAgreement:
    """The passes of a kind: their number, and their times together, simulated and measured."""

    kind: str
    passes: int
    simulated_ns: int
    measured_ns: int

    @property
    def ratio(self) -> float:
        """Return measured by simulated time; 1 where neither takes any."""
        return (self.measured_ns or 1) / (self.simulated_ns or 1)


def differing_passes(simulated: Timeline, measured: Timeline) -> str:
    """Return how the two timelines' computing passes differ, "" if they have the same."""
    if simulated.placement != measured.placement:
        return f"stages on ranks {simulated.placement} and {measured.placement}"
    ours, theirs = (Counter(s.what for _, s in compute_slots(t)) for t in (simulated, measured))
    for one, two, who in ((ours, theirs, "measured"), (theirs, ours, "simulated")):
        if missing := sorted((one - two).elements(), key=str):
            return f"{missing[0]} is not in the {who} one"
    return ""


def agreement(simulated: Timeline, measured: Timeline) -> tuple[KindAgreement, ...]:
    """Return for each kind how long its passes take in both, sorted by kind.

    Raises ValueError if the timelines are not of the same passes.
    """
    if what := differing_passes(simulated, measured):
        raise ValueError(
            f"{measured.name or 'the measured step'} and {simulated.name} differ: {what}; compare "
            "a step with the program that it ran, of the same size"
        )
    times = [Counter[str](), Counter[str]()]
    count = Counter(slot.what.kind for _, slot in compute_slots(measured))
    for total, timeline in zip(times, (simulated, measured), strict=True):
        for _, slot in compute_slots(timeline):
            total[slot.what.kind] += slot.end_ns - slot.start_ns
    return tuple(
        KindAgreement(kind, count[kind], times[0][kind], times[1][kind]) for kind in sorted(count)
    )
