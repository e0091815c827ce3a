"""Foretells steps of samples whose costs are known: as auto plans them, and in other ways."""

from dataclasses import dataclass, replace
from typing import Any

from ...balancer.planning.forecast import MOST_SAMPLES, Outlook, forecast
from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.config import PlanConfig
from ...loader.auto.choice import Choice, PlanTerms


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """Costs (n, resources) of samples in their order, and the loop that they are for.

    choice: what auto finds of them. terms: the loop as it is, with balance="auto". most_samples:
    that are planned. alone: the costs where batches round no sample up; None for rows.
    """

    choice: Choice
    terms: PlanTerms
    rows: Int64
    most_samples: int = MOST_SAMPLES
    alone: Int64 | None = None

    @property
    def now(self) -> PlanConfig:
        """The loop as it is: how its ranks wait, and what its batches pad."""
        return self.terms.plan(self.choice)[1]

    def foretell(self, is_packed: bool = False, **changed: Any) -> Outlook | None:
        """Return auto's forecast, with options of its Balance changed; None where nothing varies.

        is_packed: as if batches that are padded were packed, random order's as they are.
        """
        if not (self.choice.varies and len(self.rows)):
            return None
        terms = replace(self.terms, balance=replace(self.terms.balance, **changed))
        choice = replace(self.choice, padded=()) if is_packed else self.choice
        return self.compare(terms.plan(choice)[1])

    def compare(self, plan: PlanConfig) -> Outlook | None:
        """Return the forecast of a plan, over the loop as it is."""
        return forecast(
            plan, self.rows, self.terms.batch_size, now=self.now, alone=self.alone,
            most_samples=self.most_samples, most_steps=self.most_samples // 64,
        )  # fmt: skip

    def other_plans(self, counted: str = "") -> dict[str, float]:
        """Return a step of other plans of auto, over random order's as it is now, by their code.

        counted: how labels are counted where counts are free, as an argument.
        """
        balance = self.terms.balance
        accumulate, shifts = balance.accumulate, balance.shift_labels
        more = f", accumulate={accumulate}" if accumulate != 1 else ""
        meets = f', waits="{balance.waits}"' if balance.waits else ""
        laid, packed = meets, f'layout="packed"{meets}'
        if not shifts:
            laid += ', layout=cp.Layout("torch", shift_labels=False)'
            packed = f'layout=cp.Layout("packed", shift_labels=False){meets}'
        free = f'cp.Balance("auto"{more}{laid}, counts="free"{counted})'
        forecasts = {free: self.foretell(counts="free")}
        if accumulate == 1:
            forecasts[f'cp.Balance("auto", accumulate=4{laid})'] = self.foretell(accumulate=4)
        if self.choice.padded:
            forecasts[f'cp.Balance("auto"{more}, {packed})'] = self.foretell(is_packed=True)
        return {code: outlook.time for code, outlook in forecasts.items() if outlook is not None}
