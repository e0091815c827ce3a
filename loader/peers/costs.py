"""Packs costs of samples: 64-bit integers in the fewest bytes that hold each column.

The form: the number of rows (4 bytes) and of columns (1 byte), then for each column the width of a
value in bytes (1, 2, 4 or 8), then the columns, little-endian.
"""

import struct

import numpy as np
from numpy.typing import NDArray

_EXTENT = struct.Struct("<IB")
_WIDTHS = (1, 2, 4, 8)


def pack_costs(rows: NDArray[np.int64]) -> bytes:
    """Return costs, int64 (samples, resources), as bytes.

    >>> len(pack_costs(np.array([[7, 300], [9, 80_000]])))
    17
    """
    widths = [_width(column) for column in rows.T]
    columns = [
        column.astype(f"<i{width}").tobytes() for column, width in zip(rows.T, widths, strict=True)
    ]
    return b"".join([_EXTENT.pack(*rows.shape), bytes(widths), *columns])


def unpack_costs(data: bytes | memoryview) -> NDArray[np.int64]:
    """Return the costs (n, r) in some bytes.

    >>> unpack_costs(pack_costs(np.array([[7, -300]]))).tolist()
    [[7, -300]]
    """
    view = memoryview(data)
    n_rows, n_columns = _EXTENT.unpack_from(view)
    widths = bytes(view[_EXTENT.size : _EXTENT.size + n_columns])
    start = _EXTENT.size + n_columns
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
