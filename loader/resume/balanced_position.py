"""Resumes a loader with balance: writes its position, and checks if a plan can continue there."""

from dataclasses import dataclass
from typing import Any

from ...balancer.planning.problem.config import PLANNER_VERSION
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.protocol.messages import EpochPosition
from .ledger import BalancedLedger, check_same, read_ledger, write_ledger


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """A place in the epoch that all ranks have reached, and how many of them are beyond it.

    served: ranks of a process that plays several which have had the place's microbatch already;
    holes: ordinals of the epoch's samples that could not be used, in the steps up to here.
    """

    place: EpochPosition
    served: int = 0
    holes: tuple[int, ...] = ()


START = ResumePosition(EpochPosition(0, 0, 0, 0))


def write_position(job: JobSpec, epoch: int, position: ResumePosition) -> dict[str, Any]:
    """Return the ledger of a position as JSON values."""
    plan, place = job.plan, position.place
    ledger = BalancedLedger(
        seed=plan.seed,
        planner=PLANNER_VERSION,
        epoch=epoch,
        shuffle=job.shuffle,
        digest=plan.digest(),
        start=place.start,
        step=place.step,
        window_step=place.window_step,
        microbatch=place.microbatch,
        samples_per_step=plan.samples_per_step,
        mode=plan.mode,
        ranks=plan.ranks,
        served=position.served,
        holes=position.holes,
    )
    return write_ledger(ledger)


def read_position(state: Any, job: JobSpec, played: int) -> tuple[int, ResumePosition]:
    """Return epoch and position of the ledger in `state`; ValueError if this loader cannot go on.

    `played` is how many ranks the loader plays. Between steps, exact mode can continue with other
    ranks, accumulation or workers; inside a step or a window of several steps the plan must be the
    very same.
    """
    ledger, plan = read_ledger(state, BalancedLedger), job.plan
    current = {
        "seed": plan.seed,
        "shuffle": job.shuffle,
        "mode": plan.mode,
        "samples_per_step": plan.samples_per_step,
    }
    check_same(ledger, current)
    if is_inside(ledger) and ledger.digest != plan.digest():
        raise ValueError(
            f"the ledger was saved inside step {ledger.step} (microbatch {ledger.microbatch}) or "
            "its window, where only the very same plan can continue: resume with the same ranks, "
            "accumulate and budgets, or save between steps"
        )
    if ledger.served and played != plan.ranks:
        raise ValueError(
            f"the ledger was saved when {ledger.served} of {plan.ranks} virtual ranks had been "
            "served: resume with virtual_ranks, or save when all have been"
        )
    place = EpochPosition(ledger.start, ledger.window_step, ledger.step, ledger.microbatch)
    return ledger.epoch, ResumePosition(place, ledger.served, ledger.holes)


def is_inside(ledger: BalancedLedger) -> bool:
    """Return whether a position is inside a step, or a window of several steps."""
    return bool(ledger.microbatch or ledger.served or ledger.step != ledger.window_step)
