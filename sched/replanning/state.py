"""The state of a job's plan, a value that checkpoints hold in its JSON form."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ..ir.program import Program
from ..ir.typed_json import read_json
from ..simulation.cost_profile import CostProfile, dump_profile
from .observation import Observation
from .settings import PERMILLE


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A plan, or costs to order by, taken before the job's step `step` (from 0), and what it saves.

    `before_ns`, `after_ns`: the step under both plans, simulated with the measured times.
    `measured_before_ns`, `measured_after_ns`: medians of the windows before and after; the latter
    is 0 until that window is over.
    """

    step: int
    digest: str
    before_ns: int
    after_ns: int
    measured_before_ns: int
    measured_after_ns: int = 0

    @property
    def gain(self) -> float:
        """Return the share of the step that the plan saves, simulated."""
        return 1 - self.after_ns / max(1, self.before_ns)

    @property
    def measured_gain(self) -> float:
        """Return the share of the step that it saved; 0 as long as it is not known."""
        after = self.measured_after_ns or self.measured_before_ns
        return 1 - after / max(1, self.measured_before_ns)


@dataclass(frozen=True, slots=True)
class PlanState:
    """The state of a job's plan, the same on every rank.

    `digest`: of the programs of `counts` microbatches. `profile`: what passes cost. `usual`:
    measured over simulated steps, in thousandths, when all is as planned. `steps`: of the job until
    now. `window`: those since the last look.
    """

    digest: str
    counts: tuple[int, ...]
    profile: CostProfile
    usual: int = PERMILLE
    steps: int = 0
    window: tuple[Observation, ...] = ()
    changes: tuple[PlanChange, ...] = ()


def digest_of(programs: Mapping[int, Program]) -> str:
    """Return a digest of programs, by number of microbatches: 16 hexadecimal digits."""
    text = "\n\n".join(f"{count}\n{program}" for count, program in sorted(programs.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_profile(profile: CostProfile) -> str:
    """Return a digest of what passes cost: 16 hexadecimal digits."""
    return hashlib.sha256(dump_profile(profile).encode()).hexdigest()[:16]


def dump_state(state: PlanState) -> str:
    """Return a state as JSON; `load_state` reads it."""
    return msgspec.json.encode(state).decode()


def load_state(text: str) -> PlanState:
    """Return the state that JSON text holds. Raises ValueError, in one line, for another form."""
    return read_json(text, PlanState, "the plan's state")
