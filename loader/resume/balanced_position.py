"""Resumes a loader with balance: writes its position, and checks if a plan can continue there."""

from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from ...balancer.planning.problem.config import PLANNER_VERSION, PlanConfig
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.protocol.parts import EpochPosition
from ...balancer.run.tasks import LocalArrival, RunStart
from ...workers.sources.data_identity import KnownData
from .ledger import BalancedLedger, check_same, check_same_data, read_ledger, write_ledger


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """A place in the epoch that all ranks have reached, and how many of them are beyond it.

    served: ranks of a process that plays several which have had the place's microbatch already;
    holes: ordinals of the samples that could not be used of the step that is begun. left_out: how
    many samples of the epoch are holes so far; unusable: those that were not asked to be left out.
    stream: of a loop over a stream, where this rank's was before the place's step.
    """

    place: EpochPosition
    served: int = 0
    holes: tuple[int, ...] = ()
    left_out: int = 0
    unusable: int = 0
    stream: Any = None

    @property
    def is_inside_step(self) -> bool:
        """True if a step's first microbatches have been handed out."""
        return bool(self.place.microbatch or self.served)

    def beginning(self) -> "ResumePosition":
        """Return the position of the step's first microbatch; what was handed out comes again."""
        if not self.is_inside_step:
            return self
        return replace(self, place=structs.replace(self.place, microbatch=0), served=0)

    def leaving_out(self, ordinals: tuple[int, ...]) -> "ResumePosition":
        """Return the position with more holes, wherever in the epoch they are."""
        if not ordinals:
            return self
        return replace(self, holes=tuple(sorted({*self.holes, *ordinals})))

    def start(self, epoch: int, costs: str, samples: int = -1) -> RunStart:
        """Return the beginning of a run here, with the holes that come after this place."""
        holes = tuple(ordinal for ordinal in self.holes if ordinal >= self.place.start)
        return RunStart(epoch, self.place, holes, self.served, costs, samples, self.stream)

    def refuse_late_skips(self, skipped: tuple[int, ...], plan: PlanConfig) -> None:
        """Raise ValueError where a step that was begun would lose samples: its weights are out."""
        step = range(self.place.start, self.place.start + plan.samples_per_step)
        late = [ordinal for ordinal in skipped if ordinal in step and ordinal not in self.holes]
        if self.is_inside_step and plan.mode == "exact" and late:
            raise ValueError(
                f"skip_keys names {len(late)} samples of step {self.place.step}, and the ledger "
                "was saved inside of it: go on from one that was saved between steps"
            )

    def after(
        self, arrival: LocalArrival, ranks: tuple[int, ...], asked: tuple[int, ...] = ()
    ) -> "ResumePosition":
        """Return the position after a microbatch: all `ranks` of a process must have had theirs.

        asked: ordinals that are to be left out.
        """
        batch = arrival.batch
        new = {*batch.step_holes}.difference(self.holes)
        left_out, unusable = self.left_out + len(new), self.unusable
        unusable += len(new.difference(asked)) if new else 0
        here, costs, is_last = self.place, batch.after.costs, batch.rank == ranks[-1]
        if is_last and batch.microbatch + 1 == batch.microbatches:
            # What comes after a step needs nothing of its holes but their number.
            following = batch.after.reached()
            return ResumePosition(following, 0, (), left_out, unusable, arrival.stream)
        served = 0 if is_last else ranks.index(batch.rank) + 1
        microbatch = batch.microbatch + is_last
        here = EpochPosition(here.start, here.window_step, batch.step, microbatch, costs)
        holes = self.holes + tuple(sorted(new)) if new else self.holes
        return ResumePosition(here, served, holes, left_out, unusable, self.stream)


START = ResumePosition(EpochPosition(0, 0, 0, 0, ""))


def checked_after(after: object, of_stream: bool) -> ResumePosition:
    """Return the position that a StepInfo has; ValueError for one of another kind of loader."""
    if not isinstance(after, ResumePosition) or (after.stream is not None) != of_stream:
        raise ValueError(
            "after is a StepInfo that no loader handed out with a batch: give one that "
            "loader.with_info(), loader.steps() or loader.step_info gave"
        )
    return after


def write_position(
    job: JobSpec, epoch: int, position: ResumePosition, data: KnownData, auto: str = ""
) -> dict[str, Any]:
    """Return the ledger of a position as JSON values; `auto`: what balance="auto" has found."""
    plan, place = job.plan, position.place
    ledger = BalancedLedger(
        seed=plan.seed, samples=data.samples, data=data.identity, planner=PLANNER_VERSION,
        epoch=epoch, shuffle=job.shuffle, digest=plan.step_digest, start=place.start,
        step=place.step, window_step=place.window_step, microbatch=place.microbatch,
        costs=place.costs, samples_per_step=plan.samples_per_step, mode=plan.mode, ranks=plan.ranks,
        served=position.served, holes=position.holes, left_out=position.left_out,
        unusable=position.unusable, label_tokens=job.label_source, auto=auto,
    )  # fmt: skip
    return write_ledger(ledger)


def read_position(
    state: Any, job: JobSpec, played: int, data: KnownData, growing: bool = False
) -> tuple[BalancedLedger, ResumePosition]:
    """Return the ledger in `state` and its position; ValueError if this loader cannot go on there.

    `played` is how many ranks the loader plays; `growing` says that `data` may have become more
    since. Between steps, exact mode can continue with other ranks, accumulation or workers; inside
    a step or a window of several steps the plan must be the very same.
    """
    ledger, plan = read_ledger(state, BalancedLedger), job.plan
    current = {
        "seed": plan.seed,
        "shuffle": job.shuffle,
        "mode": plan.mode,
        "samples_per_step": plan.samples_per_step,
        "label_tokens": job.label_source,
    }
    check_same(ledger, current)
    _check_plan(ledger, plan, played)
    if data.samples is None:  # `check_counted` compares it when the workers have said it
        data = replace(data, samples=ledger.samples)
    check_same_data(ledger, data, growing, _describe_growth_obstacle(ledger))
    place = EpochPosition(
        ledger.start, ledger.window_step, ledger.step, ledger.microbatch, ledger.costs
    )
    return ledger, ResumePosition(
        place, ledger.served, ledger.holes, ledger.left_out, ledger.unusable
    )


def needed_samples(ledger: BalancedLedger | None, growing: bool) -> int:
    """Return how many samples the data of a run must have, -1 if any number will do."""
    return -1 if ledger is None or ledger.samples is None or growing else ledger.samples


def check_counted(ledger: BalancedLedger, data: KnownData, growing: bool) -> None:
    """Raise ValueError for a ledger of other data, once the workers have counted the samples."""
    if ledger.samples is not None:
        check_same_data(ledger, data, growing, _describe_growth_obstacle(ledger))


def _check_plan(ledger: BalancedLedger, plan: PlanConfig, played: int) -> None:
    """Raise ValueError for a position inside a step or a window that another plan made."""
    other_ranks = ledger.ranks != plan.ranks and bool(ledger.microbatch or ledger.served)
    if is_inside(ledger) and (other_ranks or ledger.digest != plan.step_digest):
        raise ValueError(
            f"the ledger was saved inside step {ledger.step} (microbatch {ledger.microbatch}) or "
            "its window, where only the very same plan can continue: resume with the same ranks, "
            "accumulate and budgets, or save between steps"
        )
    if is_inside(ledger) != bool(ledger.costs):
        raise ValueError(
            f"not a ledger of counterpoise: costs is {ledger.costs!r}, and inside a step or window "
            "it is the digest of what the window's samples cost, elsewhere ''"
        )
    if ledger.left_out < max(ledger.unusable, len(ledger.holes)):
        raise ValueError(
            f"not a ledger of counterpoise: left_out is {ledger.left_out}, less than unusable "
            f"({ledger.unusable}) or the number of holes ({len(ledger.holes)})"
        )
    if ledger.served and played != plan.ranks:
        raise ValueError(
            f"the ledger was saved when {ledger.served} of {plan.ranks} virtual ranks had been "
            "served: resume with Ranks(virtual=...), or save when all have been"
        )


def _describe_growth_obstacle(ledger: BalancedLedger) -> str:
    """Return why the position cannot be gone on from in data that have grown, "" if it can."""
    if ledger.step == 0 and not is_inside(ledger):
        return ""
    if ledger.shuffle:
        return "the order of an epoch that was begun is another with more samples"
    if ledger.start != ledger.window_step * ledger.samples_per_step:
        return "its epoch has had its last step"
    return ""


def is_inside(ledger: BalancedLedger) -> bool:
    """Return whether a position is inside a step, or a window of several steps."""
    return bool(ledger.microbatch or ledger.served or ledger.step != ledger.window_step)
