"""Reads the arguments of `partition`: what items cost, and what a deal of them must hold.

Costs become whole numbers: where they are fractions, or too large to be added up in 64 bits, all of
a resource are scaled alike, and its budget, such that what fits after scaling fits before.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..near_names import check_name
from ..planning.kernels.arrays import Int64, Mask
from ..planning.problem.config import PlanConfig
from ..planning.problem.options import LLM, Counts, WorkName
from ..planning.problem.values import Work, as_work
from ..planning.problem.work import padded_loads, resource_times, sample_times

Float64 = npt.NDArray[np.float64]
Numbers = Sequence[float] | npt.ArrayLike
Ids = Sequence[Any] | npt.ArrayLike
Budgets = float | Mapping[str, float] | None
Remainder = Literal["keep", "error", "repeat", "drop"]
KeepGroups = Literal["together", "spread"]
_MOST_BITS = 40  # of a scaled cost; sums of four million stay in 64 bits


@dataclass(frozen=True, slots=True)
class DealingProblem:
    """Items as they are dealt, checked; `items` is the number of those that the arguments have.

    indices (n,) are those of the arguments, ascending; is_copy (n,) says which are there a second
    time. costs (n, resources) and config say what items cost, and the budgets. loads (n, columns)
    is what ranks are to have alike, column by column, and work (n,) what counts in the end, both
    where costs add up. group_of (n,): a number for each group; speeds (ranks,): 1 on average.
    """

    config: PlanConfig
    items: int
    indices: Int64
    is_copy: Mask
    costs: Int64
    loads: Int64
    work: Float64
    group_of: Int64 | None
    speeds: Float64 | None

    @property
    def limited(self) -> tuple[Int64, tuple[int | None, ...]]:
        """The costs (n, resources) that have budgets, and these."""
        columns = [k for k, most in enumerate(self.config.budgets) if most is not None]
        return self.costs[:, columns], tuple(self.config.budgets[k] for k in columns)

    def sum_work(self, cell_of: Int64, cells: int) -> Float64:
        """Return the work of each cell (cells,), if cell_of (n,) are the items' cells."""
        if not self.config.padded:
            return np.asarray(np.bincount(cell_of, self.work, cells), dtype=np.float64)
        table = np.stack(sample_times(self.config, self.costs), axis=1)
        return np.asarray(padded_loads(table, cell_of, cells, (0,)).sum(axis=1), dtype=np.float64)


def read_problem(
    costs: Numbers | Mapping[str, Numbers], ranks: int, budgets: Budgets, counts: Counts,
    remainder: Remainder, work: Work | WorkName | Mapping[str, int], loads: Numbers | None,
    groups: Ids | None, speeds: Numbers | None,
) -> DealingProblem:  # fmt: skip
    """Return the problem that arguments of `partition` describe; ValueError for wrong ones."""
    columns = costs if isinstance(costs, Mapping) else {LLM: costs}
    numbers = {name: _read_numbers(f"costs of {name}", column) for name, column in columns.items()}
    items = max(map(len, numbers.values()), default=0)
    weights = None if loads is None else _read_numbers("loads", loads)
    group_of = None if groups is None else _number_groups(groups)
    lengths = {f"costs of {name}": len(column) for name, column in numbers.items()}
    lengths |= {"loads": items if weights is None else len(weights)}
    lengths |= {"groups": items if group_of is None else len(group_of)}
    for name, length in lengths.items():
        if length != items:
            raise ValueError(f"{name} are {length}, but there are {items} items: give one each")
    limits = _read_budgets(budgets, numbers)
    scaled = [_scale(column, limits.get(name)) for name, column in numbers.items()]
    value = as_work(work)
    config = PlanConfig(
        ranks, max(1, items), 1, tuple(numbers), tuple(most for _, most in scaled),
        padded=tuple(numbers) if value.kind == "padded" else (),
        time_ns=tuple(sorted((value.time_ns or {}).items())),
    )  # fmt: skip
    table = np.stack([column for column, _ in scaled], axis=1)
    if weights is None:
        even, amounts = _weigh(config, table)
    elif value != Work("packed"):
        raise ValueError("loads are the work of items themselves: leave work out beside them")
    else:
        even, amounts = _scale(weights, None)[0][:, None], weights.astype(np.float64)
    chosen = _choose(amounts, ranks, counts, remainder)
    is_copy = np.diff(chosen, prepend=-1) == 0
    if group_of is not None:
        group_of = group_of[chosen]
        # An item that is there a second time goes elsewhere: it is a group by itself.
        group_of[is_copy] = items + np.arange(np.count_nonzero(is_copy))
    return DealingProblem(
        config, items, chosen, is_copy, table[chosen], even[chosen], amounts[chosen], group_of,
        _read_speeds(speeds, ranks),
    )  # fmt: skip


def _choose(work: Float64, ranks: int, counts: Counts, remainder: Remainder) -> Int64:
    """Return the items that are dealt, ascending: all, without the last, or the cheapest twice."""
    items, more = len(work), len(work) % ranks
    if counts == "free" and remainder != "keep":
        raise ValueError(f"remainder is {remainder!r}, and counts 'free' leave none: use 'equal'")
    if not more or remainder == "keep":
        return np.arange(items)
    if remainder == "error":
        raise ValueError(
            f"{items} items are not a multiple of {ranks} ranks: leave {more} out or add "
            f"{ranks - more}, or use remainder 'keep', 'repeat' or 'drop'"
        )
    if remainder == "drop":
        return np.arange(items - more)
    cheapest = np.argsort(work, kind="stable")
    return np.sort(np.append(cheapest, np.resize(cheapest, ranks - more)))


def _weigh(config: PlanConfig, costs: Int64) -> tuple[Int64, Float64]:
    """Return what ranks are to have alike (n, columns), and the work (n,) of items."""
    if config.padded:
        both = sum(sample_times(config, costs))
        return np.asarray(both)[:, None], np.asarray(both, dtype=np.float64)
    columns = [*config.balanced_columns]
    is_common = bool(config.time_ns) or len(columns) > 1
    times = (resource_times(config, costs) if is_common else costs)[:, columns]
    even = times if config.time_ns else costs[:, columns]
    return np.ascontiguousarray(even), times.sum(axis=1).astype(np.float64)


def _read_numbers(name: str, values: Any) -> npt.NDArray[Any]:
    """Return whole numbers or fractions (n,), none negative; ValueError names a wrong item."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"{name} have shape {numbers.shape}, needed is (items,)")
    numbers = numbers if len(numbers) else numbers.astype(np.int64)
    if numbers.dtype.kind in "iuf" and bool(((numbers >= 0) & (numbers < 2.0**63)).all()):
        return numbers if numbers.dtype.kind == "f" else numbers.astype(np.int64)
    for item, number in enumerate(numbers.tolist()):
        if type(number) not in (int, float) or not 0 <= number < 2**63:
            raise ValueError(
                f"item {item}: {name} are {number!r:.80}, allowed are numbers from 0 to below 2**63"
            )
    raise ValueError(f"{name} are of type {numbers.dtype}, needed are whole numbers or floats")


def _read_budgets(budgets: Budgets, costs: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Return the most of each resource that has a budget; ValueError names an item above it."""
    if budgets is not None and not isinstance(budgets, Mapping):
        if len(costs) > 1:
            raise ValueError(f"budgets are {budgets!r}: give one by name, of {', '.join(costs)}")
        budgets = dict.fromkeys(costs, budgets)
    for name, most in (budgets or {}).items():
        check_name("budgets", name, costs)
        if isinstance(most, bool) or not isinstance(most, Real) or not 0 < most < 2**63:
            raise ValueError(f"budget of {name} is {most!r:.80}, allowed is a number above 0")
        for item in np.flatnonzero(costs[name] > most)[:1]:
            raise ValueError(
                f"item {item} has {costs[name][item]} {name}, more than a microbatch's budget "
                f"{most}: raise it to the largest item's {costs[name].max()}, or shorten the item"
            )
    return dict(budgets or {})


def _scale(values: npt.NDArray[Any], budget: float | None) -> tuple[Int64, int | None]:
    """Return costs (n,) and their budget as whole numbers of at most `_MOST_BITS` bits.

    By a power of two, so that most fractions stay exact; costs are rounded up, budgets down.
    """
    largest = max(float(values.max(initial=0)), float(budget or 0))
    shift = _MOST_BITS - math.frexp(largest)[1]
    if values.dtype.kind != "f" and (shift := min(0, shift)) == 0:
        return values, None if budget is None else int(budget)
    whole = np.ceil(np.ldexp(values.astype(np.float64), shift)).astype(np.int64)
    most = None if budget is None else max(1, int(math.ldexp(budget, shift)))
    # An item of just its budget fits, as it did.
    return (whole if most is None else np.minimum(whole, most)), most


def _number_groups(groups: Any) -> Int64:
    """Return a number for each item's group (n,), in the order in which groups come first."""
    number_of: dict[Any, int] = {}
    identities = groups.tolist() if hasattr(groups, "tolist") else groups
    numbers = [number_of.setdefault(identity, len(number_of)) for identity in identities]
    return np.array(numbers, dtype=np.int64)


def _read_speeds(speeds: Any, ranks: int) -> Float64 | None:
    """Return the ranks' speeds (ranks,), 1 on average; None where all are alike."""
    if speeds is None:
        return None
    numbers = np.asarray(speeds, dtype=np.float64)
    if numbers.shape != (ranks,) or not np.isfinite(numbers).all() or numbers.min() <= 0:
        raise ValueError(
            f"speeds are {speeds!r:.80}, needed are {ranks} numbers above 0, one a rank"
        )
    return None if numbers.min() == numbers.max() else numbers / numbers.mean()
