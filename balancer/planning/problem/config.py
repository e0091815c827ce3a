"""What a plan is: configuration and window in, global batches out.

Planning is a pure function of these types: the same configuration and the same costs give the
same plan on every machine, whatever arrived when.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ..kernels.arrays import Int64
from .costs import checked_column

PLANNER_VERSION = 1
MOST_RESOURCES = 32
MODES = ("exact", "window", "epoch")
GROUPINGS = ("balanced", "isf", "fixed", "random", "length", "device")
PARTITIONS = ("two_resource", "greedy", "ascending", "kk", "random", "given")
COUNTED = ("fixed", "random", "length", "device")
ORDERINGS = ("given", "disttrain", "two_opt", "multi_start")
OVERSIZE = ("alone", "refuse")


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """What the planner is asked to do; wrong or contradictory values raise ValueError.

    ranks: data-parallel ranks. samples_per_step: samples of a global batch; in modes `window` and
    `epoch`, where budgets decide, about how many are expected: it sizes the window.
    accumulate: microbatches per rank and step; "auto" lets all ranks raise it together, step by
    step, from accumulate_from upwards. resources and budgets: the costs' columns, and the most of
    each that a microbatch may hold (None: no limit). oversize: a sample over budget gets a
    microbatch of its own ("alone") or is left out ("refuse"); both are reported.
    batch_size: samples of a microbatch, for the groupings that count (COUNTED) only.

    >>> PlanConfig(ranks=2, samples_per_step=8, accumulate=1, resources=("tiles",), budgets=(9,)
    ... ).digest() == PlanConfig(2, 8, 1, ("tiles",), (9,)).digest()
    True
    """

    ranks: int
    samples_per_step: int
    accumulate: int | Literal["auto"]
    resources: tuple[str, ...]
    budgets: tuple[int | None, ...]
    grouping: str = "balanced"
    partition: str = "two_resource"
    ordering: str = "given"
    mode: str = "exact"
    seed: int = 0
    drop_last: bool = False
    oversize: str = "alone"
    batch_size: int | None = None
    accumulate_from: int = 1

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_names(self)
        _check_budgets(self)
        _check_counted(self)

    def digest(self) -> str:
        """Return 32 hex digits that change whenever a plan could."""
        text = json.dumps([PLANNER_VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Window:
    """Samples planned together: ordinals start, start + 1, ... with costs (n, resources).

    step is the number of the first step that the window makes; last says that no samples follow.
    """

    epoch: int
    step: int
    start: int
    costs: Int64
    last: bool


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The samples that one rank processes in one pass; none at all is a pass of weight zero."""

    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One optimizer step: for every rank its microbatches, the same number on all."""

    step: int
    ranks: tuple[tuple[Microbatch, ...], ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """Steps in order, how many of the window's ordinals they used up, and those over budget.

    The next window starts at start + consumed. oversize lists ordinals, ascending; where they are
    refused they are in no batch.
    """

    batches: tuple[GlobalBatch, ...]
    consumed: int
    oversize: tuple[int, ...]
    refused: bool = False


def check_costs(costs: Int64, resources: int) -> Int64:
    """Return costs as contiguous int64 (n, resources); raise ValueError if they cannot be planned.

    >>> check_costs(np.array([[1, 2], [0, 4]]), 2).sum(0).tolist()
    [1, 6]
    """
    costs = np.ascontiguousarray(costs)
    if costs.ndim != 2 or costs.shape[1] != resources:
        raise ValueError(f"costs have shape {costs.shape}, needed are (samples, {resources})")
    if costs.dtype.kind not in "iu" or (costs.size and costs.min() < 0):
        columns = [checked_column(str(each), costs[:, each]) for each in range(resources)]
        costs = np.stack(columns, axis=1)
    if costs.size and int(costs.max()) * len(costs) >= 2**62:
        raise ValueError(
            f"the largest of {len(costs)} costs is {costs.max()}; the product of both must stay "
            "below 2**62: use a larger unit"
        )
    return costs.astype(np.int64, copy=False)


def _check_counts(config: PlanConfig) -> None:
    for name in ("ranks", "samples_per_step", "accumulate_from"):
        _positive(name, getattr(config, name))
    if config.accumulate != "auto":
        _positive("accumulate", config.accumulate, ' or "auto"')
    if isinstance(config.seed, bool) or not isinstance(config.seed, int):
        raise ValueError(f"seed is {config.seed!r}, needed is an integer")


def _positive(name: str, value: object, more: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, needed is a positive integer{more}")


def _check_names(config: PlanConfig) -> None:
    allowed = {
        "mode": MODES,
        "grouping": GROUPINGS,
        "partition": PARTITIONS,
        "ordering": ORDERINGS,
        "oversize": OVERSIZE,
    }
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            raise ValueError(f"{name} is {getattr(config, name)!r}, allowed are {values}")


def _check_budgets(config: PlanConfig) -> None:
    if not config.resources:
        raise ValueError("resources is empty: name at least one, such as tokens")
    if len(config.resources) > MOST_RESOURCES:
        raise ValueError(
            f"{len(config.resources)} resources, at most {MOST_RESOURCES} can be planned together"
        )
    if len(set(config.resources)) != len(config.resources):
        raise ValueError(f"resources {config.resources} name one twice")
    if len(config.budgets) != len(config.resources):
        raise ValueError(
            f"{len(config.budgets)} budgets for {len(config.resources)} resources: "
            "give one each, None for no limit"
        )
    for name, budget in zip(config.resources, config.budgets, strict=True):
        if budget is not None:
            _positive(f"budget of {name}", budget, " or None")


def _check_counted(config: PlanConfig) -> None:
    unlimited = all(budget is None for budget in config.budgets)
    if config.grouping not in COUNTED:
        if config.batch_size is not None:
            raise ValueError(f"batch_size belongs to {COUNTED}, not to {config.grouping!r}")
        if config.mode != "exact" and unlimited:
            raise ValueError(f"mode {config.mode!r} needs a budget: without one, use 'exact'")
        return
    _positive(f"batch_size of grouping {config.grouping!r}", config.batch_size)
    if not unlimited:
        raise ValueError(
            f"grouping {config.grouping!r} cannot hold budgets: give None, or use 'balanced'"
        )
    if config.accumulate == "auto" or config.mode != "exact":
        return
    wanted = config.ranks * config.accumulate * (config.batch_size or 0)
    if config.samples_per_step != wanted:
        raise ValueError(
            f"samples_per_step is {config.samples_per_step}, but {config.ranks} ranks x "
            f"{config.accumulate} microbatches x {config.batch_size} samples are {wanted}"
        )
