"""The choice that `balance="auto"` makes once, and what a user would have written instead.

What samples cost, and how batches hold them, decides the plan: so it is the same on all ranks and
stands in the ledger, from where a resumed run takes it, whatever the first samples are then.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.balance import Balance
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.layout import as_layout
from ...balancer.planning.problem.metrics import TILE_TOKENS
from ...balancer.planning.problem.options import ATTENTION_PAIRS, LLM, NO_WORK, WorkName
from ...balancer.planning.problem.values import Work, as_work
from ...balancer.protocol.records import read_record
from ...workers.discovery import FoundCosts, FoundSource, ResourceWork
from ...workers.sources.interface import DEFAULT_COST, Source
from ...workers.sources.plain import PlainSource
from ..balanced.arguments import check_label_tokens

NO_COST = tuple(DEFAULT_COST)


@dataclass(frozen=True, slots=True)
class Choice:
    """The costs and the work that were found; `to_json` and `from_json` are inverses.

    costs: FoundCosts as JSON values, None where the data say by themselves what samples cost.
    resources: the costs' names. padded: those of which a microbatch costs count x largest.
    unrecognised: those of which it was not seen, left out of the plan. varies: False where there is
    nothing to plan by. costs_said, work_said: both in words. sizes: how batches round and cut what
    the data say.

    >>> choice = Choice(None, ("tokens",), ("tokens",))
    >>> Choice.from_json(choice.to_json()) == choice
    True
    """

    costs: dict[str, Any] | None
    resources: tuple[str, ...]
    padded: tuple[str, ...]
    varies: bool = True
    costs_said: str = ""
    work_said: str = ""
    unrecognised: tuple[str, ...] = ()
    sizes: tuple[ResourceWork, ...] = ()

    @property
    def found_costs(self) -> FoundCosts | None:
        """The measure of samples that was found; None where the data say their costs."""
        return None if self.costs is None else FoundCosts.from_dict(self.costs)

    def to_json(self) -> str:
        """Return the choice as a line of JSON, the same for equal choices."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Choice":
        """Return the choice in a line of JSON; ValueError if there is none."""
        return read_record(cls, json.loads(text), "auto")


def read_work(balance: Balance) -> WorkName | None:
    """Return the work that the user has said, by a layout too; None where it is to be found."""
    if kind := as_work(balance.work).kind:
        return kind
    if balance.bucket_by is not None:  # of one shape nothing is padded
        return "packed"
    layout = as_layout(balance.layout)
    return None if layout is None else "padded" if layout.pads else "packed"


def make_source(choice: Choice, source: Source | None, dataset: Any, key: Any) -> Source | None:
    """Return the source with the costs of a choice; `source` is what it would be without."""
    found_costs = choice.found_costs
    if found_costs is not None and found_costs.resources:
        return FoundSource(dataset, found_costs, key)
    names = choice.resources
    if choice.sizes and type(source) is PlainSource and (table := source.known_costs(names)):
        rows = rounded_costs(names, choice.sizes, np.stack(table, axis=1))
        return PlainSource(dataset, dict(zip(names, rows.T, strict=True)), key)
    return source


def rounded_costs(names: Sequence[str], sizes: Sequence[ResourceWork], rows: Int64) -> Int64:
    """Return costs (n, resources) as batches have them: rounded up, and cut."""
    rows = rows.copy()
    for rounding in sizes:
        column = rows[:, names.index(rounding.name)]
        column += rounding.extra + -(column + rounding.extra) % rounding.multiple
        np.minimum(column, rounding.limit or column, out=column)
    return rows


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """The user's arguments and the ranks, which decide the plan beside a choice.

    model_times: what a model takes, used where the user has said no times and it has one for all
    that samples cost.
    """

    balance: Balance
    ranks: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    model_times: Mapping[str, int] | None = None

    def plan(self, choice: Choice) -> tuple[Balance, PlanConfig]:
        """Return the balance that a choice stands for, and its plan.

        Where nothing varies microbatches have the samples of the reference order, batch_size each.
        Raises ValueError for budgets of what samples do not cost, and whatever a plan refuses.
        """
        balance = self.balance
        last: Any = "whole" if balance.counts == "free" else "even" if self.shuffle else "short"
        resolved, resources = self._resolved(choice), choice.resources or NO_COST
        check_label_tokens(balance, resources)
        plan = PlanConfig.from_balance(
            resolved,
            ranks=self.ranks,
            resources=resources,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            empty_microbatches=last != "even",  # broken samples leave none empty there
        )
        padded = choice.padded if choice.varies else ()
        return resolved, replace(plan, padded=padded, last_step=last)

    def _resolved(self, choice: Choice) -> Balance:
        """Return the Balance that a user would have written for the choice."""
        balance = self.balance
        if not choice.varies:
            if balance.budgets:
                reason = choice.work_said if choice.unrecognised else choice.costs_said
                raise ValueError(
                    f"budgets limit {', '.join(balance.budgets)}, but {reason}: leave budgets, or "
                    "say what samples cost, DataLoader(cost=...), and what batches are: "
                    'Balance("auto", work="padded") or work="packed"'
                )
            return replace(
                balance, grouping="fixed", partition="given", counts=None, work="packed",
                waits=None,
            )  # fmt: skip
        oversize = balance.oversize
        if balance.budgets and balance.counts != "free" and oversize == "alone":
            oversize = "error"  # no microbatch of equal counts is for one sample
        no_work = {*NO_WORK, *choice.unrecognised, balance.bucket_by}
        times_ns, work = balance.time_ns, {*choice.resources} - no_work
        if times_ns is None and work <= set(self.model_times or ()):
            times_ns = self.model_times
        elif times_ns is None and choice.unrecognised:
            times_ns = {name: TILE_TOKENS if name == "tiles" else 1 for name in work}
        # cp.balancer.time_ns(model.config) may name more than samples cost
        names = {*work, *([ATTENTION_PAIRS] if LLM in work else [])}
        times = {name: time for name, time in (times_ns or {}).items() if name in names}
        return replace(
            balance, grouping="balanced", counts=balance.counts or "equal", oversize=oversize,
            work=Work("padded" if choice.padded else "packed", times or None),
        )  # fmt: skip
