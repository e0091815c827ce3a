"""Finds what samples cost, and what a microbatch costs, from the first samples."""

from .collating import recognise_work
from .columns import ColumnCosts, column_costs
from .costs import FoundCosts
from .finding import find_costs
from .work import FoundWork

__all__ = [
    "ColumnCosts",
    "FoundCosts",
    "FoundWork",
    "column_costs",
    "find_costs",
    "recognise_work",
]
