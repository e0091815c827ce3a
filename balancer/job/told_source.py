"""What workers have told of a source: the balancer itself needs no data."""

from collections.abc import Sequence

import numpy as np

from ..planning.problem.costs import MAX_COST
from .messages import JobOpened

# Bytes of a sample in a column: of the last kind they are signed.
WIDTHS = (1, 2, 4, 8)


class ToldSource:
    """A source as planning asks for it; see LoopCosts of run/ahead."""

    def __init__(self, opened: JobOpened, resources: Sequence[str]) -> None:
        """Raises ValueError where what a worker has told cannot be."""
        sizes = {len(column) for column in opened.columns}
        # Whole columns only: their width follows from their bytes.
        are_whole = sizes <= {size * opened.count for size in WIDTHS}
        if opened.columns and (len(opened.columns) != len(resources) or not are_whole):
            raise ValueError(
                f"{len(opened.columns)} columns of costs (bytes: {sorted(sizes)}) "
                f"for {len(resources)} resources of {opened.count} samples"
            )
        columns = [_read_column(column, opened.count) for column in opened.columns]
        for costs in columns:
            if costs.size and not 0 <= costs.min() <= costs.max() <= MAX_COST:
                raise ValueError(
                    f"costs from {costs.min()} to {costs.max()}: allowed are 0 to 2**40"
                )
        self.opened, self.fingerprint = opened, opened.fingerprint
        self.loads_first = opened.loads_first
        self.names_samples, self.names = opened.names, dict[int, str]()
        self._count = opened.count
        self._columns = dict(zip(resources, columns, strict=False))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def key(self, index: int) -> str:
        """Return a sample's name, as far as it is known here; else its index."""
        return self.names.get(index, str(index))

    def known(self, index: int) -> None:
        """Return None: what is kept of single samples, the workers find beside the data."""

    def known_costs(self, resources: Sequence[str]) -> tuple[np.ndarray, ...] | None:
        """Return the costs of all samples, a column (n,) for each resource, None if not known."""
        return tuple(self._columns[name] for name in resources) if self._columns else None


def pack_column(costs: np.ndarray) -> bytes:
    r"""Return a column of costs for JobOpened, in the fewest bytes a sample that hold each.

    >>> pack_column(np.array([7, 300])), pack_column(np.array([], np.int64))
    (b'\x07\x00,\x01', b'')
    """
    most, least = costs.max(initial=0), costs.min(initial=0)
    width = 8 if least < 0 else next(w for w in WIDTHS if most < 1 << 8 * w - (w == 8))
    return costs.astype(f"<{'i' if width == 8 else 'u'}{width}").tobytes()


def _read_column(column: bytes, count: int) -> np.ndarray:
    width = len(column) // count if count else 8
    return np.frombuffer(column, f"<{'i' if width == 8 else 'u'}{width}")
