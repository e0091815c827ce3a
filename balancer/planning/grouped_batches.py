"""The global batches of a window, made of a few arrays when they are asked for."""

from collections.abc import Sequence
from itertools import islice
from typing import overload

import numpy as np

from .kernels.arrays import Int64
from .problem.config import GlobalBatch, Microbatch


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
        return sum(int(sizes[own].sum()) for own in self._cells)

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
            return tuple(self[each] for each in range(*number.indices(len(self))))
        own, step = self._cells[number], self._step + range(len(self))[number]
        begins, sizes = self._edges[own], self._edges[own + 1] - self._edges[own]
        # All ordinals in one list, each microbatch's after the other's: a tenth of the calls.
        moved = begins.ravel() - (np.cumsum(sizes) - sizes.ravel())
        places = np.repeat(moved, sizes.ravel()) + np.arange(sizes.sum())
        ordinals = iter(self._ordinals[places].tolist())
        ranks = (
            tuple(Microbatch(tuple(islice(ordinals, size))) for size in rank)
            for rank in sizes.tolist()
        )
        return GlobalBatch(step, tuple(ranks))

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same batches as those of another sequence."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]
