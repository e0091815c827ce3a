"""The size of a unit: how many ranks it has, and of how many processes."""

from typing import NamedTuple


class UnitSize(NamedTuple):
    """The size of a unit: replicas, pipeline ranks of each, and processes of each rank.

    The processes of a rank have a part of its modules each (tensor parallelism).
    """

    dp: int
    pp: int
    tp: int = 1

    @property
    def ranks(self) -> int:
        """Return the number of the unit's ranks."""
        return self.dp * self.pp

    @property
    def processes(self) -> int:
        """Return the number of the unit's processes."""
        return self.ranks * self.tp
