"""Costs and sizes that samples were measured to have, by their index in the source.

They are kept in arrays, so that many samples take little memory, and over the epochs of a job: what
a data set says of a sample does not depend on the epoch, so a later one is planned at once. Names
are not kept. A sample whose name may be needed before it is decoded is measured again: one that is
over budget, and may be refused, and one that could not be used.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ...planning.kernels.arrays import Int64, Mask
from ...protocol.job_spec import JobSpec

# Of data sets whose costs would take more than this, they are kept for one epoch, if at all.
MOST_BYTES = 512 << 20


class KnownCosts:
    """The costs and sizes that are known; during a run nothing is forgotten."""

    def __init__(self, count: int, budgets: Sequence[int | None]) -> None:
        """There is room for indexes below `count`; `budgets` are the most of each resource."""
        # The kernel gives pages for what has been written to.
        self._costs = np.zeros((count, len(budgets)), np.int64)
        # Size in bytes + 1; 0 where nothing is known.
        self._sizes = np.zeros(count, np.int64)
        most = np.iinfo(np.int64).max
        self._limits = np.array([most if each is None else each for each in budgets], np.int64)
        self._failed: set[int] = set()
        self._is_empty = True

    @property
    def resources(self) -> int:
        """The number of resources that a sample has costs of."""
        return len(self._limits)

    def are_known(self, indexes: Int64) -> Mask:
        """Return of which samples (n,) the costs are known (n,)."""
        if self._is_empty:
            return np.zeros(len(indexes), bool)
        return self._sizes[indexes] > 0

    def costs(self, indexes: Int64) -> Int64:
        """Return the costs of samples (n, resources), 0 where they are not known."""
        if self._is_empty:
            return np.zeros((len(indexes), len(self._limits)), np.int64)
        return self._costs[indexes]

    def measured(self, indexes: Int64) -> tuple[list[tuple[int, ...]], list[int]]:
        """Return the costs and the sizes in bytes of samples that are known."""
        costs = [*map(tuple, self._costs[indexes].tolist())]
        return costs, (self._sizes[indexes] - 1).tolist()

    def note(self, indexes: Sequence[int], costs: Sequence[Sequence[int]], nbytes: Int64) -> None:
        """Note the costs and the sizes of samples that were measured."""
        if not len(self._sizes):
            return
        at, rows = np.array(indexes, np.int64), np.array(costs, np.int64)
        fit = (rows <= self._limits).all(axis=1)
        self._costs[at[fit]], self._sizes[at[fit]] = rows[fit], nbytes[fit] + 1
        self._is_empty = False

    def note_failed(self, index: int) -> None:
        """Note that a sample could not be used: the next run is to measure it again."""
        if len(self._sizes):
            self._failed.add(index)

    def forget_failed(self) -> None:
        """Forget samples that could not be used; not during a run."""
        self._sizes[list(self._failed)] = 0
        self._failed.clear()


class CostMemory:
    """Keeps what is known from one run to the next of the same job and data set.

    is_used: False where each run is to measure its samples again.
    """

    def __init__(self) -> None:
        self.is_used = True
        self._key: object = None
        self._known: KnownCosts | None = None

    def known_to(
        self, job: JobSpec, count: int, fingerprint: str, whole: bool, believed: bool
    ) -> KnownCosts:
        """Return what a run begins with, and adds to.

        count, fingerprint: those of the data set. whole: the run needs an array of all costs,
        because it plans a whole epoch. believed: workers are not doubted.
        """
        nbytes = count * (len(job.resources) + 1) * np.dtype(np.int64).itemsize
        is_kept = self.is_used and believed and not job.mixed_workers and nbytes <= MOST_BYTES
        key = (job, count, fingerprint)
        if is_kept and self._known is not None and key == self._key:
            self._known.forget_failed()
            return self._known
        known = KnownCosts(count if is_kept or whole else 0, job.plan.budgets)
        self._key, self._known = (key, known) if is_kept else (None, None)
        return known

    def note_failed(self, indexes: Iterable[int]) -> None:
        """Note samples that could not be used: see KnownCosts.note_failed."""
        if self._known is not None:
            for index in indexes:
                self._known.note_failed(index)

    def forget(self) -> None:
        """Forget all; a run that goes on keeps what it has."""
        self._key, self._known = None, None
