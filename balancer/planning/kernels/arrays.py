"""The array types that planning and its compiled loops share; importing them loads no numba."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


class Slots(NamedTuple):
    """Members of groups as flat arrays with free room behind each group, and the groups' loads.

    items[start[g] : start[g] + counts[g]] are the members of group g, with free places up to
    start[g + 1]. start (groups + 1,), counts (groups,), loads (groups, resources): sums of the
    members' costs. A NamedTuple, because numba compiles functions that take one.
    """

    items: Int64
    start: Int64
    counts: Int64
    loads: Int64
