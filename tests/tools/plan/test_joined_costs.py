"""The cost model of ordering has the same times as the profile that it was made from."""

from pathlib import Path

import numpy as np

from counterpoise.balancer.planning.ordering.by_config import pass_times
from counterpoise.balancer.planning.problem.pipeline_costs import parse_pipeline, read_costs
from counterpoise.sched.simulation.cost_profile import CostFunction, CostProfile, dump_profile


def test_times_equal_the_profile_s(tmp_path: Path) -> None:
    forward = (
        CostFunction(3, {"tokens": 1500, "token_pairs": 2}),
        CostFunction(points={"tokens": ((5, 20), (50, 400), (60, 401))}),
    )
    profile = CostProfile((0, 1), {"F": forward, "B": (CostFunction(9),)})
    path = tmp_path / "costs.json"
    path.write_text(dump_profile(profile))
    amounts = {"tokens": np.array([3, 7, 100]), "token_pairs": np.array([9, 49, 10**4])}
    text = read_costs(str(path))
    pipeline = parse_pipeline(text)
    times = pass_times(pipeline, "F", amounts)
    for k in range(3):
        resources = {name: int(values[k]) for name, values in amounts.items()}
        assert times[:, k].tolist() == [stage.evaluate(resources) for stage in forward]
    assert pass_times(pipeline, "B", amounts).tolist() == [[9] * 3] * 2
