"""Turns a cost profile, as the simulator reads it, into the cost model that ordering needs."""

from ...balancer.planning.ordering.cost_model import CostModel, PassCost
from ...sched.simulation.cost_profile import CostProfile, load_profile


def load_cost_model(text: str) -> CostModel:
    """Return the cost model in a profile's JSON. Raises ValueError as `sched.load_profile` does.

    >>> import numpy as np
    >>> model = load_cost_model('{"placement": [0], "passes": {"F": [{"fixed": 7}]}}')
    >>> model.nanoseconds("F", {"tokens": np.array([1, 2])}).tolist()
    [[7, 7]]
    """
    return cost_model(load_profile(text))


def cost_model(profile: CostProfile) -> CostModel:
    """Return the cost model of a profile's passes."""
    passes = {
        kind: tuple(PassCost(entry.fixed, entry.per_thousand, entry.points) for entry in entries)
        for kind, entries in profile.passes.items()
    }
    return CostModel(profile.placement, passes)
