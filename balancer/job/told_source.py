"""What workers have told of a source: the balancer itself needs no data."""

from collections.abc import Sequence

import numpy as np

from ..planning.kernels.arrays import Int64
from ..planning.problem.costs import MAX_COST
from .messages import JobOpened


class ToldSource:
    """A source as planning asks for it; see LoopCosts of run/costs."""

    def __init__(self, told: JobOpened, resources: Sequence[str]) -> None:
        """Raises ValueError where what a worker has told cannot be."""
        sizes = {len(column) for column in told.columns}
        if told.columns and (len(told.columns) != len(resources) or sizes != {8 * told.count}):
            raise ValueError(
                f"{len(told.columns)} columns of costs (bytes: {sorted(sizes)}) "
                f"for {len(resources)} resources of {told.count} samples"
            )
        for column in told.columns:
            costs = np.frombuffer(column, np.int64)
            if costs.size and not 0 <= costs.min() <= costs.max() <= MAX_COST:
                raise ValueError(
                    f"costs from {costs.min()} to {costs.max()}: allowed are 0 to 2**40"
                )
        self.told, self.fingerprint, self.loads_first = told, told.fingerprint, told.loads_first
        self.names_samples, self.names = told.names, dict[int, str]()
        self._count = told.count
        self._columns = dict(zip(resources, told.columns, strict=False))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def key(self, index: int) -> str:
        """Return a sample's name, as far as it is known here; else its index."""
        return self.names.get(index, str(index))

    def known_costs(self, resources: Sequence[str]) -> tuple[Int64, ...] | None:
        """Return the costs of all samples, a column (n,) for each resource, None if not known."""
        if not self._columns:
            return None
        return tuple(np.frombuffer(self._columns[name], np.int64) for name in resources)
