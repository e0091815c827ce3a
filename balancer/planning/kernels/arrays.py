"""The array types of planning, and the types that kernels declare; importing them loads none."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# What kernels take and return. In compiled.pyx they are types of C: numbers of 64 bits, and
# int64 arrays of one to four dimensions, C-contiguous and writable.
Int = int
Word = int  # has no sign
Flag = bool
Vector = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.int64]
Cube = npt.NDArray[np.int64]
Grid = npt.NDArray[np.int64]


class Slots(NamedTuple):
    """Members of groups as flat arrays with free room behind each group, and the groups' loads.

    items[start[g] : start[g] + counts[g]] are the members of group g, with free places up to
    start[g + 1]. start (groups + 1,), counts (groups,), loads (groups, resources): sums of the
    members' costs.
    """

    items: Int64
    start: Int64
    counts: Int64
    loads: Int64
