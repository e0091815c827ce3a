"""What a program costs: nanoseconds and bytes, as integers.

`Costs` is what `simulate` reads. A table is one number for all, one per stage, or one per stage
and microbatch; for kinds cut over the ranks (vocabulary passes) "stage" means rank.
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

    `pass_ns[kind]`: how long a pass takes. `p2p_ns`: from one rank to another, one number or a
    table [from][to]; nothing between stages of one rank. `collective_ns[barrier]`: 0 if absent.
    `buffer_bytes[buffer]`: what a buffer of a pass weighs (see `kinds`), 0 if absent; the default
    counts live activations, so peaks are in microbatches. `parameter_bytes`: per rank, held
    throughout. `overlap`: whether transfers and collectives run beside the passes.
    """

    pass_ns: Mapping[str, Table]
    p2p_ns: Table = 0
    collective_ns: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: Mapping[str, Table] = field(default_factory=lambda: {"activation": 1})
    parameter_bytes: Table = 0
    overlap: bool = True


def unit_costs(forward: int = 1, backward: int = 2, output: int = 0) -> Costs:
    """Costs for looking at shapes: a backward is twice a forward, I and W share it.

    `output`: each output-layer pass's time; input-layer and encoder passes and what is done once a
    step take none.

    >>> unit_costs(10, 20).pass_ns["W"]
    10
    """
    half = backward // 2
    parts = {"F": forward, "B": backward, "I": half, "W": backward - half}
    vocabulary = dict.fromkeys(("S", "T", "L", "E", "G"), output)
    free = dict.fromkeys(("IF", "IB", "EF", "EB", "O", "UNSHARD", "RESHARD", "REDUCE_GRAD"), 0)
    return Costs(parts | vocabulary | free)


def expand(what: str, table: Any, rows: int, columns: int) -> NDArray[np.int64]:
    """The table as an array (rows, columns).

    Raises ValueError for negative numbers, fractions, NaN, and tables of another size.
    """
    try:
        array = np.asarray(table)
    except ValueError:
        raise ValueError(f"{what}: its rows differ in length; give {columns} in each") from None
    if array.size and array.dtype.kind not in "iu":
        bad = next((x for x in array.ravel().tolist() if type(x) is not int), table)
        raise ValueError(f"{what}: got {bad!r}; give whole numbers")
    if array.size and array.min() < 0:
        raise ValueError(f"{what}: got {array.min()}; give numbers of 0 or more")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim == 2 and array.shape not in ((rows, 1), (rows, columns)):
        got, want = "x".join(map(str, array.shape)), f"{rows}x1 or {rows}x{columns}"
        raise ValueError(f"{what}: got a table of {got} (stages x microbatches); give {want}")
    if array.ndim > 2:
        raise ValueError(f"{what}: got {array.ndim} dimensions; give stages x microbatches")
    return np.broadcast_to(array.astype(np.int64), (rows, columns))
