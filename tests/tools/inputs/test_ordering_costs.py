"""The cost model of ordering has the same times as the profile that it was made from."""

import numpy as np
import pytest

from counterpoise.sched.simulation.cost_profile import CostFunction, CostProfile, dump_profile
from counterpoise.tools.inputs.ordering_costs import load_cost_model


def test_times_equal_the_profile_s() -> None:
    forward = (
        CostFunction(3, {"tokens": 1500, "token_pairs": 2}),
        CostFunction(points={"tokens": ((5, 20), (50, 400), (60, 401))}),
    )
    text = dump_profile(CostProfile((0, 1), {"F": forward, "B": (CostFunction(9),)}))
    amounts = {"tokens": np.array([3, 7, 100]), "token_pairs": np.array([9, 49, 10**4])}
    model = load_cost_model(text)
    times = model.nanoseconds("F", amounts)
    for k in range(3):
        resources = {name: int(values[k]) for name, values in amounts.items()}
        assert times[:, k].tolist() == [stage.of(resources) for stage in forward]
    assert model.nanoseconds("B", amounts).tolist() == [[9] * 3] * 2


def test_text_that_is_no_profile_is_refused_by_its_reader() -> None:
    with pytest.raises(ValueError, match="the cost profile: "):
        load_cost_model('{"placement": [0], "passes": {"F": [{"slow": 1}]}}')
