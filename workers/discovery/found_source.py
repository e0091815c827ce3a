"""`FoundSource`: a data set with the costs that were found in its first samples."""

from typing import Any

from ..sources.interface import PlainSource, Probe
from .costs import FoundCosts
from .finding import ColumnCosts, column_costs


class FoundSource(PlainSource):
    """A data set whose costs were found: measured when loaded, or read from its columns."""

    def __init__(self, dataset: Any, found: FoundCosts, key: Any) -> None:
        """`found` measures a loaded sample, unless the data set's columns say as much."""
        super().__init__(dataset, found.measure, key)
        self._columns: ColumnCosts | None = column_costs(dataset, found)

    @property
    def decode_first(self) -> bool:
        """Return whether a sample has to be loaded to learn its cost."""
        return self._columns is None

    def probe(self, index: int) -> Probe:
        """Find the cost of a sample; SampleError where it is none."""
        if self._columns is None:
            return super().probe(index)
        return Probe(self.key(index), self._columns.cost(index))
