"""All or none: at each microbatch index all ranks have images, or none has.

Where some ranks run the image encoder and others do not, sharded training (FSDP) hangs, or every
rank without images runs an encoder for nothing. `rows_by_presence` puts microbatches with images
side by side. What that and levelling leave are a few mixed rows (a row: the microbatches that run
side by side, one on each rank). `match_rows` mends them by exchanging samples: each microbatch
without images gets one that another can spare, or all images of the row go where there are some.
"""

import msgspec
import numpy as np
from msgspec import structs

from ..kernels.arrays import Int64, Mask
from ..problem.config import PlanConfig
from ..problem.loads import alike, budget_array, scale_costs

_TRIED = 64  # samples that each exchange is chosen among


def rows_by_presence(loads: Int64, has: Mask, ranks: int) -> Int64:
    """Return int64 (rows, ranks): groups of like loads side by side, those that have images first.

    loads (groups, resources); has (groups,). One row at most is mixed.

    >>> rows_by_presence(np.array([[4], [9], [8], [5]]), np.array([True, False, False, True]), 2)
    array([[3, 0],
           [1, 2]])
    """
    order = alike(loads, ranks).ravel()
    return order[np.argsort(~has[order], kind="stable")].reshape(-1, ranks)


def with_images(has: Mask, group_of: Int64, groups: int) -> Mask:
    """Return (groups,): whether groups hold a sample that has images; has (n,), group_of (n,).

    >>> with_images(np.array([True, False, True]), np.array([1, 0, -1]), 3).tolist()
    [False, True, False]
    """
    has_images = np.zeros(groups, dtype=bool)
    has_images[group_of[has & (group_of >= 0)]] = True
    return has_images


def mixed_rows(has: Mask) -> Int64:
    """Return the microbatch indices at which some ranks have images and others have none.

    has (ranks, microbatches).
    """
    return np.flatnonzero(has.any(axis=0) & ~has.all(axis=0))


def match_rows(
    config: PlanConfig, costs: Int64, has: Mask, group_of: Int64, cells: list[Int64]
) -> Int64:
    """Return group_of (n,) after exchanges within each step that leave no mixed row, if possible.

    costs (n, resources) of what is balanced; has (n,): which samples have images; cells: each
    step's groups (ranks, microbatches). Rows stay mixed where a step has fewer images than ranks,
    or budgets forbid each exchange. With equal counts every microbatch keeps its number of
    samples, but for empty ones. Research of this project.
    """
    matched = group_of.copy()
    inside = group_of >= 0
    parts = max(1, sum(step_cells.size for step_cells in cells))
    small = np.zeros_like(costs)
    small[inside], budgets = scale_costs(costs[inside], budget_array(config.budgets), parts)
    groups = 1 + max(
        int(group_of.max(initial=-1)), *(int(step_cells.max()) for step_cells in cells)
    )
    cell_of_group = np.full(groups + 1, -1)  # the last is of samples in no group
    for step_cells in cells:
        cell_of_group[:] = -1
        cell_of_group[step_cells.ravel()] = np.arange(step_cells.size)
        samples = np.flatnonzero(cell_of_group[group_of] >= 0)
        cell_of = cell_of_group[group_of[samples]]
        step = _Step.from_samples(
            config, small[samples], has[samples], cell_of, budgets, step_cells.shape
        )
        matched[samples] = step_cells.ravel()[step.mended().cell_of]
    return matched


class _Step(msgspec.Struct, frozen=True):
    """A step's samples by their cells, numbered rank x rows + row; the arrays are changed.

    small (n + 1, resources) has a last row of zeros: the sample that an empty cell gives.
    """

    small: Int64
    has: Mask
    cell_of: Int64  # (n,)
    loads: Int64  # (cells, resources)
    images: Int64  # (cells,): samples that have images
    budgets: Int64
    rows: int
    once: bool  # ranks wait once a step, so that exchanges inside a rank cost nothing
    free_counts: bool  # cells may have another number of samples than before

    @classmethod
    def from_samples(
        cls, config: PlanConfig, small: Int64, has: Mask, cell_of: Int64, budgets: Int64,
        shape: tuple[int, ...],
    ) -> "_Step":  # fmt: skip
        """Return the step of samples (n, resources) in cells of shape (ranks, rows)."""
        many = shape[0] * shape[1]
        loads = np.zeros((many, small.shape[1]), dtype=np.int64)
        np.add.at(loads, cell_of, small)
        images = np.bincount(cell_of[has], minlength=many)
        zeros = np.zeros((1, small.shape[1]), dtype=np.int64)
        padded = np.concatenate([small, zeros])
        once, free = config.waits == "step", not config.equal_counts
        return cls(padded, has, cell_of, loads, images, budgets, shape[1], once, free)

    def mended(self) -> "_Step":
        """Return the step with as few mixed rows as can be reached."""
        step = self
        for row in mixed_rows(self._has_images()).tolist():
            filled, emptied = step._copy(), step._copy()
            ways = [(filled._fill(row), 0, filled), (emptied._empty(row), 1, emptied)]
            possible = [(cost, number, way) for cost, number, way in ways if cost is not None]
            if possible:
                step = min(possible, key=lambda way: way[:2])[2]
        return step

    def _has_images(self) -> Mask:
        """Return (ranks, rows): whether cells have images."""
        return (self.images > 0).reshape(-1, self.rows)

    def _copy(self) -> "_Step":
        return structs.replace(
            self, cell_of=self.cell_of.copy(), loads=self.loads.copy(), images=self.images.copy()
        )

    def _fill(self, row: int) -> int | None:
        """Give a sample with images to each cell of a row that has none; None: not possible."""
        cost, by_size = 0, np.argsort(self.small[:-1].sum(axis=1), kind="stable")
        for cell in range(row, len(self.images), self.rows):
            if self.images[cell]:
                continue
            spare = by_size[(self.has & (self.images[self.cell_of] > 1))[by_size]][:_TRIED]
            samples = np.flatnonzero(self.cell_of == cell)
            takers = samples if len(samples) else np.array([-1])
            rise = self._exchange(spare, takers, np.full(len(takers), cell))
            if rise is None:
                return None
            cost += rise
        return cost

    def _empty(self, row: int) -> int | None:
        """Take all samples with images out of a row, for others without; None: not possible."""
        cost = 0
        ranks, whole = len(self.images) // self.rows, np.asarray(self._has_images().all(axis=0))
        sizes = self.small[:-1].sum(axis=1)
        takers = np.flatnonzero(~self.has & whole[self.cell_of % self.rows])
        for sample in np.flatnonzero(self.has & (self.cell_of % self.rows == row)):
            near = takers[np.argsort(np.abs(sizes[takers] - sizes[sample]), kind="stable")]
            near = near[:_TRIED]
            rise = self._exchange(np.array([sample]), near, self.cell_of[near])
            if rise is None and self.free_counts:
                rise = self._move_away(int(sample), np.flatnonzero(np.tile(whole, ranks)))
            if rise is None:
                return None
            cost += rise
            takers = takers[whole[self.cell_of[takers] % self.rows]]
        return cost

    def _move_away(self, sample: int, cells: Int64) -> int | None:
        """Move a sample to one of `cells`; where its own would be empty, one without images comes.

        None: not possible.
        """
        cell, cost = int(self.cell_of[sample]), 0
        counts = np.bincount(self.cell_of, minlength=len(self.images))
        if counts[cell] == 1:
            spare = np.flatnonzero((self.images[self.cell_of] == 0) & (counts[self.cell_of] > 1))
            rise = self._exchange(spare[:_TRIED], np.array([-1]), np.array([cell]))
            if rise is None:
                return None
            cost = rise
        gone = self._exchange(np.array([sample]), np.full(len(cells), -1), cells)
        return None if gone is None else cost + gone

    def _exchange(self, givers: Int64, takers: Int64, theirs: Int64) -> int | None:
        """Exchange the two samples that raise the loads ranks wait for least; None: none may.

        takers, in cells `theirs`, are -1 where a sample only moves. Returns by how much loads rise
        above the largest that ranks waited for, over all resources.
        """
        if not len(givers) or not len(takers):
            return None
        ours = self.cell_of[givers]
        by = self.small[givers][:, None] - self.small[takers][None]
        ours_after, theirs_after = self.loads[ours][:, None] - by, self.loads[theirs][None] + by
        fits = (ours_after <= self.budgets).all(axis=2) & (theirs_after <= self.budgets).all(axis=2)
        if not fits.any():
            return None
        rise = np.where(fits, self._rise(ours, theirs, by), np.iinfo(np.int64).max)
        least = int(rise.min())
        moved = np.where(rise == least, np.abs(by).sum(axis=2), np.iinfo(np.int64).max)
        i, j = np.unravel_index(int(moved.argmin()), moved.shape)
        self._move(int(givers[i]), int(theirs[j]))
        if takers[j] >= 0:
            self._move(int(takers[j]), int(ours[i]))
        return least

    def _rise(self, ours: Int64, theirs: Int64, by: Int64) -> Int64:
        """Return by how much exchanges (givers, takers) raise teams above the tops of contests."""
        if self.once:
            teams = self.loads.reshape(-1, self.rows, self.loads.shape[1]).sum(axis=1)
            ours, theirs = ours // self.rows, theirs // self.rows
            tops = np.broadcast_to(teams.max(axis=0), teams.shape)
        else:
            teams = self.loads
            highest = teams.reshape(-1, self.rows, teams.shape[1]).max(axis=0)
            tops = np.tile(highest, (len(teams) // self.rows, 1))
        room_of_ours, room_of_theirs = (tops - teams)[ours][:, None], (tops - teams)[theirs][None]
        over = np.maximum(-by - room_of_ours, 0) + np.maximum(by - room_of_theirs, 0)
        rise: Int64 = over.sum(axis=2)
        return np.where(ours[:, None] == theirs[None], 0, rise)

    def _move(self, sample: int, cell: int) -> None:
        before = self.cell_of[sample]
        self.loads[before] -= self.small[sample]
        self.loads[cell] += self.small[sample]
        self.images[before] -= int(self.has[sample])
        self.images[cell] += int(self.has[sample])
        self.cell_of[sample] = cell
