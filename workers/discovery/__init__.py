"""Finds what samples cost, and what a microbatch costs, from the first samples."""

from .collating import recognise_work, telling_samples
from .costs import FoundCosts, FoundWork, ResourceWork
from .finding import FIRST, FoundSource, column_costs, find_costs, hold_first

__all__ = [
    "FIRST",
    "FoundCosts",
    "FoundSource",
    "FoundWork",
    "ResourceWork",
    "column_costs",
    "find_costs",
    "hold_first",
    "recognise_work",
    "telling_samples",
]
