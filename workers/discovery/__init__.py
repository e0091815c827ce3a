"""Finds what samples cost, and what a microbatch costs, from the first samples."""

from .collating import recognise_work
from .costs import FoundCosts, FoundWork
from .finding import ColumnCosts, column_costs, find_costs

__all__ = [
    "ColumnCosts",
    "FoundCosts",
    "FoundWork",
    "column_costs",
    "find_costs",
    "recognise_work",
]
