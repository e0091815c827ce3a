"""The resume state: what `next()` has returned, as a few JSON values, the same on every rank."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from ...balancer.planning.problem.config import PLANNER_VERSION, PlanConfig
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.protocol.messages import EpochPosition

LEDGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """Where a loader stands: a place that all ranks have reached, and how many are beyond it.

    served: ranks of a process that plays several which have had the place's microbatch already;
    holes: ordinals of the epoch's samples that could not be used, in the steps up to here.
    """

    place: EpochPosition
    served: int = 0
    holes: tuple[int, ...] = ()


START = ResumePosition(EpochPosition(0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Ledger:
    """A position in an epoch, and what a plan must have in common to continue there.

    start, window_step: the first ordinal and the first step of the window that `step` is in;
    microbatch: how many of the step's microbatches every rank has been given; served: how many
    ranks of a process that plays them all have been given one more; holes: ordinals of the samples
    that could not be used, of all ranks, in the steps of this epoch that were begun.
    """

    epoch: int
    start: int
    window_step: int
    step: int
    microbatch: int
    seed: int
    shuffle: bool
    samples_per_step: int
    mode: str
    ranks: int
    digest: str
    served: int = 0
    holes: tuple[int, ...] = ()
    planner: int = PLANNER_VERSION
    version: int = LEDGER_VERSION

    @property
    def position(self) -> ResumePosition:
        """The position as a loader has it."""
        place = EpochPosition(self.start, self.window_step, self.step, self.microbatch)
        return ResumePosition(place, self.served, self.holes)


def write_ledger(
    job: JobSpec, plan: PlanConfig, epoch: int, position: ResumePosition
) -> dict[str, Any]:
    """Return the ledger of a position as JSON values."""
    place = position.place
    ledger = asdict(
        Ledger(
            epoch=epoch,
            start=place.start,
            window_step=place.window_step,
            step=place.step,
            microbatch=place.microbatch,
            seed=plan.seed,
            shuffle=job.shuffle,
            samples_per_step=plan.samples_per_step,
            mode=plan.mode,
            ranks=plan.ranks,
            digest=plan.digest(),
            served=position.served,
            holes=position.holes,
        )
    )
    return ledger | {"holes": list(position.holes)}


def parse_ledger(state: Any) -> Ledger:
    """Return the ledger in `state`, whoever it is for; ValueError if it is none."""
    try:
        ledger = Ledger(**state)
        return replace(ledger, holes=tuple(int(ordinal) for ordinal in ledger.holes))
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a ledger of counterpoise: {error}") from error


def read_ledger(state: Any, job: JobSpec, plan: PlanConfig, played: int) -> Ledger:
    """Return the ledger in `state`; ValueError if this loader cannot continue there.

    `played` is how many ranks the loader plays. Between steps, exact mode can continue with other
    ranks, accumulation or workers; inside a step or a window of several steps the plan must be the
    very same.
    """
    ledger = parse_ledger(state)
    if ledger.version != LEDGER_VERSION or ledger.planner != PLANNER_VERSION:
        raise ValueError(
            f"the ledger is of version {ledger.version}, planner {ledger.planner}; this side has "
            f"{LEDGER_VERSION}, {PLANNER_VERSION}: resume with the counterpoise that wrote it"
        )
    current = {
        "seed": plan.seed,
        "shuffle": job.shuffle,
        "mode": plan.mode,
        "samples_per_step": plan.samples_per_step,
    }
    other = [
        f"{name} was {getattr(ledger, name)!r} and is {value!r}"
        for name, value in current.items()
        if getattr(ledger, name) != value
    ]
    if other:
        raise ValueError("the ledger belongs to another order of samples: " + "; ".join(other))
    inside = ledger.microbatch or ledger.served or ledger.step != ledger.window_step
    if inside and ledger.digest != plan.digest():
        raise ValueError(
            f"the ledger stands inside step {ledger.step} (microbatch {ledger.microbatch}) or its "
            "window, where only the very same plan can continue: resume with the same ranks, "
            "accumulate and budgets, or save between steps"
        )
    if ledger.served and played != plan.ranks:
        raise ValueError(
            f"the ledger was saved when {ledger.served} of {plan.ranks} virtual ranks had been "
            "served: resume with virtual_ranks, or save when all have been"
        )
    return ledger
