"""Costs of a program's passes, transfers and buffers, in integer nanoseconds and bytes.

`simulate` reads `Costs`. A table is one number for all, one per stage, or one per stage and
microbatch; for kinds that are divided over the ranks (vocabulary passes) "stage" means rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = int | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Times and sizes.

    A table is a number, numbers by stage (or rank), or rows of numbers by microbatch.

    Args:
        pass_ns: By kind, the table of the times of its passes.
        p2p_ns: The time of a message between two ranks, a number or a table [from][to]; default 0.
        collective_ns: By barrier, the time of its collective; default 0.
        buffer_bytes: By buffer (see `kinds`), the table of its sizes, 0 if absent; default: 1 for
            activations, so that peaks are in microbatches.
        parameter_bytes: Of each rank, held throughout; default 0.
        overlap: False if ranks wait for transfers and collectives; default True: beside the passes.
    """

    pass_ns: Mapping[str, Table]
    p2p_ns: Table = 0
    collective_ns: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: Mapping[str, Table] = field(default_factory=lambda: {"activation": 1})
    parameter_bytes: Table = 0
    overlap: bool = True


def unit_costs(forward: int = 1, backward: int = 2, output: int = 0) -> Costs:
    """Return simple costs for comparing schedules: I and W share the backward's time.

    `output`: the time of each output-layer pass. Input-layer, encoder and generator passes, and
    passes done once a step, take no time.

    >>> unit_costs(10, 20).pass_ns["W"]
    10
    """
    half = backward // 2
    parts = {"F": forward, "B": backward, "I": half, "W": backward - half}
    vocabulary = dict.fromkeys(("S", "T", "L", "E", "G"), output)
    guests = ("IF", "IB", "EF", "EB", "GF", "GB")
    free = dict.fromkeys((*guests, "O", "UNSHARD", "RESHARD", "REDUCE_GRAD"), 0)
    return Costs(parts | vocabulary | free)


def expand(name: str, table: Any, rows: int, columns: int) -> NDArray[np.int64]:
    """Return a table as an array (rows, columns); `name` is its name in errors.

    Raises ValueError for negative numbers, fractions, NaN, and tables of another size.
    """
    try:
        array = np.asarray(table)
    except ValueError:
        raise ValueError(f"{name}: its rows differ in length; give {columns} in each") from None
    # Converting to int64 would take True for 1 and cut fractions.
    if array.size and array.dtype.kind not in "iu":
        bad = next((x for x in array.ravel().tolist() if type(x) is not int), table)
        raise ValueError(f"{name}: got {bad!r}; give whole numbers")
    if array.size and array.min() < 0:
        raise ValueError(f"{name}: got {array.min()}; give numbers of 0 or more")
    # A row has one entry per stage, for all microbatches.
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim == 2 and array.shape not in ((rows, 1), (rows, columns)):
        got, want = "x".join(map(str, array.shape)), f"{rows}x1 or {rows}x{columns}"
        raise ValueError(f"{name}: got a table of {got} (stages x microbatches); give {want}")
    if array.ndim > 2:
        raise ValueError(f"{name}: got {array.ndim} dimensions; give stages x microbatches")
    return np.broadcast_to(array.astype(np.int64), (rows, columns))
