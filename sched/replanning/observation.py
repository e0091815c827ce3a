"""Measured steps: rows of whole numbers that ranks add up, and the cost profile made from them.

Each rank fills in its own passes; the sum over all ranks, replicas included, is the same on every
rank, so all of them decide alike. For a kind of pass and a stage (or rank) there is the time that
the passes took, and the time that the cost profile gives for the same microbatches: their ratio
does not depend on what the microbatches held. A step is as long as the longest time from a rank's
first pass to its last, which needs no common clock.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median_low
from typing import Any

import msgspec

from ..ir.kinds import is_compute
from ..ir.program import Pass, Program, parse_pass
from ..simulation.cost_profile import CostFunction, CostProfile, Resources, profile_costs
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Slot

# A kind of pass and its stage (or rank), as the text of a pass without microbatch: "0F".
Key = str


@dataclass(frozen=True)
class StepKeys:
    """The kinds and stages (or ranks) that have passes, in the order of the row's numbers.

    `passes`: of each, in one pipeline's step of `microbatches`.
    """

    passes: Mapping[Key, int]
    ranks: int
    microbatches: int

    @cached_property
    def place(self) -> Mapping[Key, int]:
        """Return the place of each key in the row."""
        return {key: at for at, key in enumerate(self.passes)}

    @property
    def width(self) -> int:
        """Return the length of a row."""
        return 2 * len(self.passes) + self.ranks + 2

    def row(
        self,
        rank: int,
        slots: Sequence[Slot],
        profile: CostProfile,
        held: Sequence[Resources],
        expected_ns: int,
    ) -> list[int]:
        """Return one rank's row of a step.

        `held`: the resources of the pipeline's microbatches. `expected_ns`: the simulated step,
        which the first rank of each pipeline says for all.
        """
        row = [0] * self.width
        measured = [slot for slot in slots if pass_key(slot.what) in self.place]
        for pass_, start_ns, end_ns in measured:
            at = self.place[pass_key(pass_)]
            row[at] += end_ns - start_ns
            entry = profile.entries(pass_.kind)[pass_.stage]
            row[len(self.passes) + at] += entry.evaluate(held[pass_.microbatch])
        if measured:
            row[2 * len(self.passes) + rank] = measured[-1].end_ns - measured[0].start_ns
        if rank == 0:
            row[-2:] = [expected_ns, 1]
        return row


@dataclass(frozen=True, slots=True)
class Observation:
    """A step as all ranks together have measured it.

    `measured`, `predicted`: by kind and stage, ns over all passes of all pipelines. `span_ns`,
    `expected_ns`: of a step, measured and simulated. `microbatches`: of a pipeline.
    """

    measured: Mapping[Key, int]
    predicted: Mapping[Key, int]
    passes: Mapping[Key, int]
    span_ns: int
    expected_ns: int
    microbatches: int

    @classmethod
    def from_row(cls, keys: StepKeys, row: Sequence[int]) -> "Observation":
        """Return the observation that the sum of all ranks' rows is."""
        count = len(keys.passes)
        replicas = max(1, row[-1])
        return cls(
            dict(zip(keys.passes, row[:count], strict=True)),
            dict(zip(keys.passes, row[count : 2 * count], strict=True)),
            {key: replicas * number for key, number in keys.passes.items()},
            max(row[2 * count : -2]) // replicas,
            row[-2] // replicas,
            keys.microbatches,
        )


def step_keys(program: Program) -> StepKeys:
    """Return what is measured of a program: its computing passes.

    >>> from counterpoise.sched import schedule
    >>> step_keys(schedule("1f1b", ranks=2, microbatches=3)).passes["1B"]
    3
    """
    computing = (pass_ for row in program.ranks for pass_ in row if is_compute(pass_.kind))
    counts = Counter(map(pass_key, computing))
    return StepKeys(dict(sorted(counts.items())), len(program.ranks), program.microbatches)


def pass_key(pass_: Pass) -> Key:
    """Return the key of a pass.

    >>> pass_key(Pass(2, "EF_A", 7))
    '2EF_A'
    """
    return f"{pass_.stage}{pass_.kind}"


def expected_step(program: Program, profile: CostProfile, held: Sequence[Resources]) -> int:
    """Return the ns from a rank's first pass to its last, of the longest rank, simulated."""
    return span(simulate(program, profile_costs(profile, held)).ranks)


def span(ranks: Sequence[Sequence[Slot]]) -> int:
    """Return the longest time from a rank's first pass to its last."""
    return max((row[-1].end_ns - row[0].start_ns for row in ranks if row), default=0)


_MILLION = 10**6


def scaled_profile(profile: CostProfile, window: Sequence[Observation]) -> CostProfile:
    """Return the profile with each stage's costs as many times as large as they were measured.

    The factor is the median over the window's steps. Where the profile has no time at all, passes
    cost what they took on average.
    """
    passes: dict[str, tuple[CostFunction, ...]] = {}
    for name in profile.passes:
        rows = enumerate(profile.entries(name))
        passes[name] = tuple(_entry(entry, f"{row}{name}", window) for row, entry in rows)
    return msgspec.structs.replace(profile, passes=passes)


def _entry(entry: CostFunction, key: Key, window: Sequence[Observation]) -> CostFunction:
    steps = [step for step in window if step.passes.get(key)]
    if not steps:
        return entry
    if not all(step.predicted[key] for step in steps):
        return CostFunction(_mean_ns(key, steps))
    factor = median_low(step.measured[key] * _MILLION // step.predicted[key] for step in steps)
    return CostFunction(
        entry.fixed * factor // _MILLION,
        {name: rate * factor // _MILLION for name, rate in entry.per_thousand.items()},
        {
            name: tuple((amount, ns * factor // _MILLION) for amount, ns in points)
            for name, points in entry.points.items()
        },
    )


def mean_costs(profile: CostProfile, window: Sequence[Observation]) -> Costs:
    """Return the mean time of each kind's passes by stage or rank, the median of the steps.

    Transfers and collectives are the profile's.
    """
    keys = {key for step in window for key in step.passes}
    times: dict[str, list[int]] = {}
    for key in keys:
        pass_ = parse_pass(key)
        row = times.setdefault(pass_.kind, [0] * profile.rows(pass_.kind))
        row[pass_.stage] = _mean_ns(key, window)
    ordered: Mapping[str, list[int]] = dict(sorted(times.items()))
    return Costs(ordered, p2p_ns=profile.p2p_ns, collective_ns=dict(profile.collectives))


def _mean_ns(key: Key, window: Sequence[Observation]) -> int:
    steps = (step for step in window if key in step.passes)
    return median_low(step.measured[key] // step.passes[key] for step in steps)


def nearby(costs: Costs) -> Iterator[Costs]:
    """Yield mean costs, and some that differ from them by less than measurements do.

    Planners search from where the costs put them, and a per cent can be the difference between two
    local optima. Times of a kind that differ by less than 5 % are also taken for one, and all are
    rounded to 5 and to 4 binary digits.

    >>> [one.pass_ns["F"] for one in nearby(Costs({"F": [1000, 1030, 1500]}))]
    [[1000, 1030, 1500], [1015, 1015, 1500], [992, 1024, 1472], [1024, 1024, 1536]]
    """
    yield costs
    for change in (_alike, partial(_rounded, digits=5), partial(_rounded, digits=4)):
        yield replace(costs, pass_ns={kind: change(row) for kind, row in costs.pass_ns.items()})


def _alike(row: Any) -> list[int]:
    """Return times with each replaced by the mean of those that are up to 5 % above the least."""
    means: dict[int, int] = {}
    remaining = sorted(row)
    while remaining:
        group = [ns for ns in remaining if 100 * ns <= 105 * remaining[0]]
        means |= dict.fromkeys(group, sum(group) // len(group))
        remaining = remaining[len(group) :]
    return [means[ns] for ns in row]


def _rounded(row: Any, digits: int) -> list[int]:
    """Return times rounded to a number of binary digits."""
    units = [1 << max(0, ns.bit_length() - digits) for ns in row]
    return [(ns + unit // 2) // unit * unit for ns, unit in zip(row, units, strict=True)]
