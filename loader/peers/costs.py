"""Packs costs of samples: 64-bit integers in the fewest bytes that hold each column.

The form: the number of rows (4 bytes) and of columns (1 byte), then for each column the width of a
value in bytes (1, 2, 4 or 8), then the columns, little-endian.
"""

import struct

import numpy as np
from numpy.typing import NDArray

_EXTENT = struct.Struct("<IB")
_WIDTHS = (1, 2, 4, 8)
MAX_ROWS, MAX_COLUMNS = (1 << 32) - 1, 255


def pack_costs(rows: NDArray[np.int64]) -> bytes:
    """Return costs, a row for each sample, as bytes; ValueError if they are no int64 array (n, r).

    >>> len(pack_costs(np.array([[7, 300], [9, 80_000]])))
    17
    """
    if rows.ndim != 2 or rows.dtype != np.int64:
        raise ValueError(
            f"costs are {rows.dtype} of shape {rows.shape}, needed is int64 of (samples, resources)"
        )
    if rows.shape[0] > MAX_ROWS or rows.shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"costs have the shape {rows.shape}, packed are at most {MAX_ROWS} rows and "
            f"{MAX_COLUMNS} columns"
        )
    widths = [_width(column) for column in rows.T]
    columns = [
        column.astype(f"<i{width}").tobytes() for column, width in zip(rows.T, widths, strict=True)
    ]
    return b"".join([_EXTENT.pack(*rows.shape), bytes(widths), *columns])


def unpack_costs(data: bytes | memoryview) -> NDArray[np.int64]:
    """Return the costs (n, r) in some bytes; ValueError if `pack_costs` did not make them.

    >>> unpack_costs(pack_costs(np.array([[7, -300]]))).tolist()
    [[7, -300]]
    """
    view = memoryview(data)
    if len(view) < _EXTENT.size:
        raise ValueError(f"not packed costs: {len(view)} bytes, at least {_EXTENT.size} are needed")
    n_rows, n_columns = _EXTENT.unpack_from(view)
    widths = bytes(view[_EXTENT.size : _EXTENT.size + n_columns])
    if len(widths) < n_columns or not set(widths) <= set(_WIDTHS):
        raise ValueError(f"not packed costs: widths of columns are {list(widths)}")
    start = _EXTENT.size + n_columns
    # Checked before anything is allocated: four bytes of rubbish could ask for 32 GiB.
    if len(view) != (needed := start + n_rows * sum(widths)):
        raise ValueError(f"not packed costs: {len(view)} bytes where {needed} are needed")
    rows = np.empty((n_rows, n_columns), np.int64)
    for number, width in enumerate(widths):
        end = start + n_rows * width
        rows[:, number] = np.frombuffer(view[start:end], f"<i{width}")
        start = end
    return rows


def _width(column: NDArray[np.int64]) -> int:
    """Return the bytes that each value of a column needs.

    >>> [_width(np.array([value])) for value in (127, -129, 40_000, 1 << 40)]
    [1, 2, 4, 8]
    """
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    return next(w for w in _WIDTHS if -(1 << (8 * w - 1)) <= low and high < 1 << (8 * w - 1))
