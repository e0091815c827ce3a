"""The planner: turns a window's sample costs into global batches, as a pure function.

`steps.py` decides how many microbatches each step has and which samples they hold, `partition/`
assigns the microbatches to ranks and exchanges samples between them, and `ordering/` may rearrange
each rank's. Nothing is kept between windows, so that a resumed run plans as an uninterrupted one
does. A window's batches are a few arrays, and made when they are asked for.
"""

from collections.abc import Sequence
from itertools import islice
from typing import overload

import numpy as np

from .kernels.arrays import Int64, Mask
from .kernels.loops import check_work
from .partition.by_name import assign_groups, assign_in_rows
from .partition.level import level
from .problem.config import GlobalBatch, Microbatch, OrderRanks, PlanConfig, Planned, Window
from .problem.costs import OversizeError, check_costs
from .problem.loads import budget_array, oversized
from .problem.shuffle import derive_seed
from .problem.work import is_timed, padded_loads, timed_config, timed_costs
from .steps import StepGroups, group_epoch, group_last, group_prefix, group_step


class GroupedBatches(Sequence[GlobalBatch]):
    """Batches by number: each rank's groups of each step, and each group's samples.

    It keeps 4 bytes a sample (8 from 2**31 on), where the batches themselves take 40 and more.

    >>> cells = [np.array([[1], [0]])]
    >>> GroupedBatches(np.array([0, 1, 1]), 2, cells, step=7, start=100)[0].ranks[0]
    (Microbatch(ordinals=(101, 102)),)
    """

    def __init__(
        self, group_of: Int64, groups: int, cells: Sequence[Int64], step: int, start: int
    ) -> None:
        """`group_of` (n,) is the group of each sample from ordinal `start` on, -1 for none.

        `cells` are each step's groups (ranks, microbatches), `step` is the number of the first. A
        microbatch's ordinals are ascending.
        """
        # Two bytes are sorted by counting, which takes a fifth of the time.
        small = group_of.astype(np.int16) if groups <= 2**15 else group_of
        order = np.argsort(small, kind="stable")
        sizes = np.bincount(group_of + 1, minlength=groups + 1)
        self._edges = np.cumsum(sizes)
        order += start
        is_small = start + len(order) < 2**31
        self._ordinals = order.astype(np.int32) if is_small else order
        self._cells = cells
        self._step = step

    @property
    def samples(self) -> int:
        """The number of samples in all batches."""
        sizes = np.diff(self._edges)
        return sum(int(sizes[groups].sum()) for groups in self._cells)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._cells)

    @overload
    def __getitem__(self, number: int) -> GlobalBatch: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[GlobalBatch, ...]: ...
    def __getitem__(self, number: int | slice) -> GlobalBatch | tuple[GlobalBatch, ...]:
        """Return a batch, or several."""
        if isinstance(number, slice):
            return tuple(self[k] for k in range(*number.indices(len(self))))
        groups, step = self._cells[number], self._step + range(len(self))[number]
        begins, sizes = self._edges[groups], self._edges[groups + 1] - self._edges[groups]
        # All ordinals in one list, each microbatch's after the other's: a tenth of the calls.
        moved = begins.ravel() - (np.cumsum(sizes) - sizes.ravel())
        places = np.repeat(moved, sizes.ravel()) + np.arange(sizes.sum())
        ordinals = iter(self._ordinals[places].tolist())
        ranks = (
            tuple(Microbatch(tuple(islice(ordinals, size))) for size in rank)
            for rank in sizes.tolist()
        )
        return GlobalBatch(step, tuple(ranks))


WINDOW_STEPS = 4
WINDOW_SAMPLES = 5120  # enough that 4096 are planned together even if groups pack badly
WHOLE_EPOCH = 2**40
# Without compiled kernels a cost takes about so many seconds, and one of padded work
_PLAIN_S, _PLAIN_PADDED_S = 2.5e-4, 7.5e-4


class Planner:
    """Plans windows under one configuration; made by make_planner."""

    def __init__(self, config: PlanConfig, order_ranks: OrderRanks | None = None) -> None:
        self.config, self._order_ranks = config, order_ranks
        # The resources that are balanced, and the configuration with no others.
        self._columns = config.balanced_columns
        self._balanced = config.only(self._columns)
        # That configuration before times took the place of costs; None: none did.
        self._untimed = self._balanced if is_timed(self._balanced) else None
        if self._untimed is not None:
            self._balanced = timed_config(self._untimed)

    @property
    def window_samples(self) -> int:
        """Number of samples to give plan() at once; at the epoch's end there are fewer.

        2**40 in mode `epoch`, which plans all samples at once.
        """
        size = self.config.samples_per_step
        if self.config.mode == "epoch":
            return WHOLE_EPOCH
        if self.config.mode == "exact":
            return size
        return (max(WINDOW_STEPS, -(-WINDOW_SAMPLES // size)) + 1) * size

    def plan(self, window: Window) -> Planned:
        """Return the window's steps; see PlanConfig for what they hold.

        Raises ValueError if the window is short without being the last, or if budgets cannot be
        met with the configured accumulate; the error names the smallest that can.
        """
        config = self.config
        costs = check_costs(window.costs, len(config.resources))
        if config.multiples:
            costs = check_costs(config.sizing.rounded(costs), len(config.resources))
        short = len(costs) < self.window_samples and not window.last
        if short or len(costs) > self.window_samples:
            raise ValueError(
                f"window at ordinal {window.start} has {len(costs)} samples; give "
                f"{self.window_samples}, or fewer with last=True at the epoch's end"
            )
        if self._is_one_microbatch(len(costs)):
            everything = Microbatch(tuple(range(window.start, window.start + len(costs))))
            whole = GlobalBatch(window.step, ((everything,),))
            return Planned((whole,), len(costs), (), config.oversize == "refuse")
        seconds = costs.size * (_PLAIN_PADDED_S if config.plans_rows else _PLAIN_S)
        check_work(f"planning {len(costs):,} samples at once", seconds)
        self._refuse_oversize(window, costs)
        balanced = np.ascontiguousarray(costs[:, self._columns])
        if self._untimed is not None:
            balanced = timed_costs(self._untimed, balanced)
        grouped = self._group(window, balanced, costs)
        used = grouped.used
        batches = self._assign(window, grouped, balanced[:used], costs[:used])
        over = np.flatnonzero(oversized(balanced[:used], budget_array(self._balanced.budgets)))
        oversize = tuple((over + window.start).tolist())
        left_out = self._count_left_out(batches, used, len(oversize))
        # An epoch's batches are made when they are needed: all together they take much memory.
        in_memory = batches if config.mode == "epoch" else tuple(batches)
        return Planned(in_memory, used, oversize, config.oversize == "refuse", left_out)

    def _is_one_microbatch(self, samples: int) -> bool:
        """Return whether a window is one microbatch, whatever its samples cost.

        Such windows are small, and many: to find out in the usual way takes most of a loop's plan.
        """
        config = self.config
        is_exact = config.mode == "exact" and samples == config.samples_per_step
        is_one = config.ranks == 1 and config.first_accumulate == 1
        is_counted = config.grouping == "fixed" and samples <= (config.batch_size or 0)
        return is_exact and is_one and is_counted and not config.limited

    def _count_left_out(self, batches: GroupedBatches, used: int, oversize: int) -> int:
        """Return how many samples are in no batch, and neither named with one nor dropped."""
        config = self.config
        refused = oversize * (config.oversize == "refuse")
        if config.drop_last and (config.mode == "epoch" or not batches):
            return 0 if batches or config.mode == "exact" else refused
        return used - batches.samples - (refused if batches else 0)

    def _refuse_oversize(self, window: Window, costs: Int64) -> None:
        """Raise OversizeError for a sample over budget, where that is to end the run."""
        config = self.config
        if config.oversize != "error":
            return
        for row in np.flatnonzero(oversized(costs, budget_array(config.budgets)))[:1].tolist():
            columns = zip(config.resources, costs[row].tolist(), config.budgets, strict=True)
            figures = ", ".join(
                f"{cost:,} {name} of {most:,}"
                for name, cost, most in columns
                if most is not None and cost > most
            )
            raise OversizeError(
                window.start + row,
                f"is over budget by itself ({figures}) and oversize is 'error': raise the budget, "
                "shorten the sample, or use oversize 'alone' or 'refuse'",
            )

    def _group(self, window: Window, costs: Int64, all_costs: Int64) -> StepGroups:
        """Return the groups of every step of the window, by the configured mode.

        costs, all_costs: as in `_assign`.
        """
        config = self._balanced
        seed = derive_seed(config.seed, window.epoch, window.start)
        if config.bucket_by is not None and len(costs):
            from .steps_by_shape import group_shapes  # here: few plans use it

            keys = all_costs[:, self.config.resources.index(config.bucket_by)]
            return group_shapes(config, costs, keys, seed, window.last)
        if config.mode == "epoch" and len(costs):
            return group_epoch(config, costs, seed)
        partial = len(costs) < config.samples_per_step
        if config.mode == "window" and len(costs):
            grouped = group_prefix(config, costs, seed)
            if grouped.steps:
                return grouped
            # The last samples do not fill a step: they become one partial step, or are dropped.
            partial = window.last
        if not len(costs) or (partial and not config.keeps_last(len(costs))):
            return StepGroups(np.full(len(costs), -1, dtype=np.int64), ())
        plan = group_last if partial and config.last_step != "whole" else group_step
        return plan(config, costs, seed, window.step)

    def _assign(
        self, window: Window, grouped: StepGroups, costs: Int64, all_costs: Int64
    ) -> GroupedBatches:
        """Return the batches: every step's groups on ranks, their samples exchanged, and in order.

        costs: of what is balanced; all_costs: of all resources, by which microbatches are ordered.
        """
        config, group_of = self.config, grouped.group_of
        # Groups may exist that no step uses (of a dropped step), and steps may use groups that
        # hold no sample (a partial step's padding): count both.
        groups = 1 + max(int(numbers.max(initial=-1)) for numbers in (group_of, *grouped.steps))
        if groups == 1:  # a step of one rank and one microbatch: there is nothing to choose
            cells = [chosen.reshape(1, 1) for chosen in grouped.steps]
            return GroupedBatches(group_of, groups, cells, window.step, window.start)
        loads = padded_loads(costs, group_of, groups, self._balanced.padded_columns)
        loads = self._balanced.sizing.bucketed(loads)
        has: Mask | None = None
        present: Mask | None = None
        cells = []
        if config.all_or_none:
            from .partition.all_or_none import match_rows, with_images  # here: few plans use it

            has = all_costs[:, config.resources.index(config.all_or_none)] > 0
            present = with_images(has, group_of, groups)
        for step, chosen in enumerate(grouped.steps, start=window.step):
            seed = derive_seed(config.seed, window.epoch, step)
            images = None if present is None else present[chosen]
            cells.append(chosen[self._assign_step(loads[chosen], images, seed)])
        if has is not None and cells:
            group_of = match_rows(self._balanced, costs, has, group_of, cells)
        # Exchanges even out the ranks, where groups are ours to change.
        is_ours = config.grouping == "balanced" and config.partition == "multi_resource"
        is_ours = is_ours and not self._balanced.plans_rows and config.bucket_by is None
        if is_ours and cells:
            group_of = level(self._balanced, costs, group_of, np.stack(cells), has)
        if self._order_ranks is not None:
            from .ordering.by_config import ordered_loads

            # What a pass takes may depend on resources that are not balanced.
            loads = ordered_loads(config, all_costs, group_of, groups)
            for number, step_groups in enumerate(cells):
                places = np.arange(step_groups.size).reshape(step_groups.shape)
                cells[number] = step_groups.ravel()[
                    self._order_ranks(loads[step_groups.ravel()], places)
                ]
        return GroupedBatches(group_of, groups, cells, window.step, window.start)

    def _assign_step(self, loads: Int64, images: Mask | None, seed: int) -> Int64:
        """Return int64 (ranks, accumulate): which of a step's groups each rank runs when.

        images (groups,): which groups have images, if they are to be side by side but for one row.
        """
        config = self.config
        if images is not None:
            from .partition.all_or_none import rows_by_presence

            return assign_in_rows(rows_by_presence(loads, images, config.ranks), loads, seed)
        if not config.plans_rows or config.partition != "multi_resource":
            return assign_groups(config.partition, loads, config.ranks, seed)
        if config.waits == "step":
            return assign_groups("greedy", loads, config.ranks, seed)
        rows = np.arange(len(loads)).reshape(-1, config.ranks)
        return assign_in_rows(rows, loads, seed)


def make_planner(config: PlanConfig, order_ranks: OrderRanks | None = None) -> Planner:
    """Return the planner of a configuration.

    order_ranks: for orderings other than "given" whose configuration has no pipeline, a function
    that takes a step's microbatch loads (groups, resources), with token pairs as last column if
    there are tokens, and the assignment (ranks, accumulate) of groups to ranks in the order they
    run, and returns the assignment rearranged; `ordering.ranks.rank_ordering` makes one. Raises
    ValueError if it is missing, and for a pipeline whose costs need what samples do not have.

    >>> planner = make_planner(PlanConfig(2, 4, 1, ("tiles",), (None,), "fixed", batch_size=2))
    >>> batch, = planner.plan(Window(0, 0, 8, np.array([[5], [1], [2], [3]]), False)).batches
    >>> [[microbatch.ordinals for microbatch in rank] for rank in batch.ranks]
    [[(8, 9)], [(10, 11)]]
    """
    if order_ranks is None and config.pipeline:
        # Only here: most plans have no pipeline, and its modules would delay each start.
        from .ordering.by_config import make_ordering

        order_ranks = make_ordering(config)
    if (config.ordering != "given") != (order_ranks is not None):
        raise ValueError(
            f"ordering {config.ordering!r} and order_ranks={order_ranks!r} contradict each other: "
            'an ordering other than "given" needs a pipeline, or a function from '
            'ordering.ranks.rank_ordering; "given" needs none'
        )
    return Planner(config, order_ranks)
