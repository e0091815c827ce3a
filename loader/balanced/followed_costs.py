"""The costs that ordering goes by, where a pipeline measures them while it trains.

A plan's ordering compares orders by a cost profile. A pipeline with `replan` brings its profile up
to what its passes take, on all ranks after the same step. The loader looks at it before each step:
where it has changed, the run goes on at this step as a new one, with the new costs, which all ranks
ask for alike. Which samples a step has does not depend on them, only their order and, among the
ranks, whose they are.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.pipeline_costs import with_profile
from ...balancer.protocol.parts import EpochPosition
from ..step.errors import LoaderError


class MeasuredCosts(Protocol):
    """A source of a pipeline's costs by pass, such as `sched.runtime.Pipeline`."""

    def measured_costs(self) -> tuple[str, tuple[int, int] | None]:
        """Return a cost profile as JSON, "" where none is followed.

        Also epoch and step of the last microbatches that were trained on, None before any.
        """


@dataclass(slots=True)
class FollowedCosts:
    """Follows the costs of a pipeline. `plan`: the one that the loader was made with."""

    pipe: MeasuredCosts
    plan: PlanConfig
    _accepted_profile: str = ""
    _offered_profile: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a plan that orders by no costs."""
        if not self.plan.pipeline:
            raise ValueError(
                "follow_costs() is for a loader that orders microbatches for a pipeline: give "
                "Balance(pipeline='costs.json')"
            )

    def find_changed_plan(self, epoch: int, position: EpochPosition | None) -> PlanConfig | None:
        """Return the plan by a step's costs, None if they have not changed.

        It is returned again until `accept` is called, since beginning a run may be interrupted.
        `position`: None for a step to be resumed at. Raises LoaderError if the step before is not
        the last that was trained on, since ranks that fetch ahead would not change at the same
        step, and ValueError for costs of other stages.
        """
        profile, trained = self.pipe.measured_costs()
        if profile == self._accepted_profile:
            return None
        # The first costs are there before any step.
        if self._accepted_profile and position is not None and trained is not None:
            last_epoch, last_step = trained
            if epoch == last_epoch and (step := position.step) != last_step + 1:
                raise LoaderError(
                    f"the pipeline's costs have changed after step {last_step}, and step {step} is "
                    "fetched already: a loader that follows them gives one step at a time; loop "
                    "over loader.steps() without fetching ahead, or train with replan='off'"
                )
        self._offered_profile = profile
        pipeline = with_profile(self.plan.pipeline, profile) if profile else self.plan.pipeline
        return replace(self.plan, pipeline=pipeline)

    def accept(self) -> None:
        """Go by the costs that have changed from now on."""
        self._accepted_profile = self._offered_profile

    def find_costs_to_tell(self, plan: PlanConfig) -> str:
        """Return the costs that a balancer has to be told, "" for those that it knows."""
        return "" if plan.pipeline == self.plan.pipeline else plan.pipeline
