"""Loaders from flat options, so that a test can change one of Balance's like any other."""

from typing import Any

from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.options import OPTIONS
from counterpoise.loader import DataLoader


def balanced_loader(dataset: Any, *, grouping: Any, **given: Any) -> DataLoader:
    """Return a balanced DataLoader; those of the arguments that are Balance's options go there."""
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    return DataLoader(dataset, balance=Balance(grouping=grouping, **options), **given)
