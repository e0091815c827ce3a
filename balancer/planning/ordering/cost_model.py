"""What a microbatch takes: resources to whole nanoseconds, per stage and kind of pass.

A cost profile is JSON (sched/simulation/cost_profile.py has the same; measured, or computed from
model shapes):

    {"placement": [0, 1],
     "passes": {"F": [{"fixed": 900, "per_thousand": {"tokens": 51200, "token_pairs": 12}},
                      {"points": {"tokens": [[0, 0], [1024, 40000], [4096, 200000]]}}],
                "B": [{"fixed": 1800}]}}

A list has one entry per stage, or one for all. A pass takes fixed + sum of per_thousand x amount
/ 1000 + what the points say: piecewise linear between them, as DistTrain (2024) §3 interpolates
its profile, and beyond the last along its last piece. token_pairs is the sum of the squares of
the sequences' lengths: attention. All is rounded down to integers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import group_loads
from .evaluator import PipelineEvaluator

Amounts = Mapping[str, Int64]
Points = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Price:
    """What one pass takes as a function of a microbatch's resources, in nanoseconds."""

    fixed: int = 0
    per_thousand: Mapping[str, int] = field(default_factory=dict)
    points: Mapping[str, Points] = field(default_factory=dict)

    def of(self, amounts: Amounts) -> Int64:
        """Return int64 nanoseconds of microbatches, whose amounts are int64 arrays of one length.

        Raises ValueError if an amount that it needs is missing.

        >>> Price(10, {"tokens": 1500}).of({"tokens": np.array([3, 5])}).tolist()
        [14, 17]
        >>> Price(points={"tiles": ((0, 0), (4, 8), (8, 32))}).of({"tiles": np.array([2, 6, 9])})
        array([ 4, 20, 38])
        """
        missing = (self.per_thousand.keys() | self.points.keys()) - amounts.keys()
        if missing:
            have = ", ".join(sorted(amounts)) or "none"
            raise ValueError(f"the costs say no {sorted(missing)[0]!r}; they say {have}")
        size = len(next(iter(amounts.values()), np.empty(0)))
        extra = np.zeros(size, dtype=np.int64)
        for name, rate in self.per_thousand.items():
            extra += amounts[name].astype(np.int64) * rate
        total: Int64 = extra // 1000 + self.fixed
        for name, points in self.points.items():
            total = total + _interpolated(points, amounts[name].astype(np.int64))
        return total


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices of all stages: passes[kind] has one entry per stage, or one for all.

    placement: the rank of each stage; its highest rank + 1 is the pipeline's size.
    """

    placement: tuple[int, ...]
    passes: Mapping[str, tuple[Price, ...]]

    def __post_init__(self) -> None:
        """Check that every kind has as many prices as stages, or one."""
        for kind, prices in self.passes.items():
            if len(prices) not in (1, len(self.placement)):
                raise ValueError(
                    f"{kind}: prices of {len(prices)} stages; give all {len(self.placement)}, or 1"
                )

    def nanoseconds(self, kind: str, amounts: Amounts) -> Int64:
        """Return int64 (stages, microbatches) of one kind of pass; ValueError without a price."""
        if kind not in self.passes:
            raise ValueError(f"no price for passes {kind!r}; there are {sorted(self.passes)}")
        prices = self.passes[kind]
        each = prices * len(self.placement) if len(prices) == 1 else prices
        return np.stack([price.of(amounts) for price in each])

    def pipeline(self, amounts: Amounts) -> PipelineEvaluator:
        """Return the 1F1B pipeline (interleaved where ranks hold several stages) of microbatches.

        Backward takes what B says, or I and W together, or twice forward.
        """
        forward = self.nanoseconds("F", amounts)
        backward: Int64 = 2 * forward
        if "B" in self.passes:
            backward = self.nanoseconds("B", amounts)
        elif "I" in self.passes:
            backward = self.nanoseconds("I", amounts) + self.nanoseconds("W", amounts)
        return PipelineEvaluator.one_forward_one_backward(
            max(self.placement) + 1, forward, backward
        )


def load_cost_model(text: str) -> CostModel:
    """Read a cost profile from JSON; ValueError, in one line, for what is not one.

    >>> model = load_cost_model('{"placement": [0], "passes": {"F": [{"fixed": 7}]}}')
    >>> model.nanoseconds("F", {"tokens": np.array([1, 2])}).tolist()
    [[7, 7]]
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the cost profile is not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("passes"), dict):
        raise ValueError('the cost profile must be an object with "placement" and "passes"')
    placement = raw.get("placement")
    if not isinstance(placement, list) or not placement or not all(map(_is_whole, placement)):
        raise ValueError(f"placement is {placement!r}, needed is the rank of each stage")
    passes = {kind: tuple(_prices(kind, entries)) for kind, entries in raw["passes"].items()}
    return CostModel(tuple(placement), passes)


def amounts_of(
    resources: tuple[str, ...],
    costs: Int64,
    group_of: Int64,
    groups: int,
    sequence: str = "tokens",
    layout: str = "packed",
) -> dict[str, Int64]:
    """Return what each group holds of every resource, int64 (groups,), and its pairs.

    costs (n, resources) by sample. `sequence` names the resource that attention squares: tokens
    gives token_pairs, the sum of squares. layout="padded": every sequence counts as its group's
    longest, so a group of n costs n x longest. Raises ValueError for another layout.

    >>> costs, group_of = np.array([[3], [1], [2]]), np.array([0, 0, 1])
    >>> {k: v.tolist() for k, v in amounts_of(("tokens",), costs, group_of, 2).items()}
    {'tokens': [4, 2], 'token_pairs': [10, 4]}
    >>> found = amounts_of(("tokens",), costs, group_of, 2, layout="padded")
    >>> {k: v.tolist() for k, v in found.items()}
    {'tokens': [6, 2], 'token_pairs': [18, 4]}
    """
    if layout not in ("packed", "padded"):
        raise ValueError(f"layout is {layout!r}, allowed are 'packed' and 'padded'")
    costs = np.array(costs, dtype=np.int64)
    if sequence in resources:
        column = resources.index(sequence)
        if layout == "padded":
            longest = np.zeros(groups, dtype=np.int64)
            np.maximum.at(longest, group_of, costs[:, column])
            costs[:, column] = longest[group_of]
        costs = np.column_stack([costs, costs[:, column] ** 2])
        resources = (*resources, sequence.removesuffix("s") + "_pairs")
    loads = group_loads(costs, group_of, groups)
    return {name: loads[:, k].copy() for k, name in enumerate(resources)}


def _interpolated(points: Points, amounts: Int64) -> Int64:
    xs = np.array([x for x, _ in points], dtype=np.int64)
    ys = np.array([y for _, y in points], dtype=np.int64)
    piece = np.clip(np.searchsorted(xs, amounts, side="right") - 1, 0, len(xs) - 2)
    run, rise = np.diff(xs)[piece], np.diff(ys)[piece]
    return np.maximum(0, ys[piece] + (amounts - xs[piece]) * rise // run)


def _prices(kind: str, entries: Any) -> list[Price]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{kind}: give a list of prices, one for each stage, or one for all")
    return [_price(kind, entry) for entry in entries]


def _price(kind: str, entry: dict[str, Any]) -> Price:
    if bad := set(entry) - {"fixed", "per_thousand", "points"}:
        raise ValueError(
            f"{kind}: a price has {sorted(bad)[0]!r}; give fixed, per_thousand, points"
        )
    rates, tables = entry.get("per_thousand", {}), entry.get("points", {})
    if not isinstance(rates, dict) or not isinstance(tables, dict):
        raise ValueError(f"{kind}: per_thousand and points are objects, by resource")
    if not all(map(_is_whole, [entry.get("fixed", 0), *rates.values()])):
        raise ValueError(f"{kind}: prices are whole numbers of 0 or more, got {entry}")
    return Price(entry.get("fixed", 0), rates, {k: _points(kind, v) for k, v in tables.items()})


def _points(kind: str, raw: Any) -> Points:
    pairs = isinstance(raw, list) and all(isinstance(p, list) and len(p) == 2 for p in raw)
    whole = pairs and all(_is_whole(number) for point in raw for number in point)
    xs = [point[0] for point in raw] if whole else []
    if len(xs) < 2 or sorted(set(xs)) != xs:
        raise ValueError(
            f"{kind}: points are two or more [amount, ns] with rising amounts, got {raw}"
        )
    return tuple((x, y) for x, y in raw)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
