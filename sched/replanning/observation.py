"""Rows of whole numbers, in one order on all ranks, which add up to what a step took.

Each rank fills in its own passes; the sum over all ranks, replicas included, is the same on every
rank, so all of them decide alike. For a kind of pass and a stage (or rank) there is the time that
the passes took, and the time that the cost profile gives for the same microbatches: their ratio
does not depend on what the microbatches held. A step is as long as the longest time from a rank's
first pass to its last, which needs no common clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..ir.kinds import is_kind, kind
from ..ir.passes import Pass
from ..ir.program import Program
from ..simulation.cost_profile import CostProfile, Resources, profile_costs
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
        found = [0] * self.width
        own = [slot for slot in slots if key_of(slot.what) in self.place]
        for what, start_ns, end_ns in own:
            at = self.place[key_of(what)]
            found[at] += end_ns - start_ns
            entries = profile.passes[what.kind]
            entry = entries[what.stage if len(entries) > 1 else 0]
            found[len(self.passes) + at] += entry.of(held[what.microbatch])
        if own:
            found[2 * len(self.passes) + rank] = own[-1].end_ns - own[0].start_ns
        if rank == 0:
            found[-2:] = [expected_ns, 1]
        return found


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
    def of(cls, keys: StepKeys, row: Sequence[int]) -> "Observation":
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


def keys_of(program: Program) -> StepKeys:
    """Return what is measured of a program: its computing passes.

    >>> from counterpoise.sched import schedule
    >>> keys_of(schedule("1f1b", ranks=2, microbatches=3)).passes["1B"]
    3
    """
    found: dict[Key, int] = {}
    for row in program.ranks:
        for item in row:
            if is_kind(item.kind) and kind(item.kind).role == "compute":
                found[key_of(item)] = found.get(key_of(item), 0) + 1
    return StepKeys(dict(sorted(found.items())), len(program.ranks), program.microbatches)


def key_of(item: Pass) -> Key:
    """Return the key of a pass.

    >>> key_of(Pass(2, "EF_A", 7))
    '2EF_A'
    """
    return f"{item.stage}{item.kind}"


def expected_step(program: Program, profile: CostProfile, held: Sequence[Resources]) -> int:
    """Return the ns from a rank's first pass to its last, of the longest rank, simulated."""
    return span(simulate(program, profile_costs(profile, held)).ranks)


def span(ranks: Sequence[Sequence[Slot]]) -> int:
    """Return the longest time from a rank's first pass to its last."""
    return max((row[-1].end_ns - row[0].start_ns for row in ranks if row), default=0)
