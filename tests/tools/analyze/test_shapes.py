"""What `analyze` says that shapes cost, worked out by hand, and on the project's metadata."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.planning.costs import read_costs
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.analyze.model.alternatives import shape_figures
from counterpoise.tools.analyze.model.forecast import make_forecast
from counterpoise.tools.analyze.model.strategies import Plan
from counterpoise.tools.inputs.cost_tables import CostTable


def figures(table: CostTable, plan: Plan) -> dict[str, dict[str, float]] | None:
    return shape_figures(make_forecast(table, plan))


def test_four_texts_are_as_worked_out_by_hand() -> None:
    # One step of 2 ranks x 1 microbatch: two samples of 40 tokens each.
    table = CostTable(("tokens",), np.full((4, 1), 40), np.zeros(4, np.int64))
    found = figures(table, Plan(ranks=2, accumulate=1, batch_size=2, budgets=(160,)))
    assert found is not None
    shares = {name: (one["padding"], one["efficiency"]) for name, one in found.items()}
    assert shares == {
        "": (0, 1),
        'align={"tokens": 16}': (pytest.approx(1 - 40 / 48), pytest.approx(40 / 48)),
        "cp=16": (pytest.approx(1 - 40 / 64), pytest.approx(40 / 64)),
        "max_shapes=8": (0, 1),  # 80 is one of 20, 40, ... 160
        "fixed=True": (0.5, 0.5),
    }


def test_nothing_is_said_of_samples_without_tokens() -> None:
    table = CostTable(("frames",), np.full((8, 1), 4), np.zeros(8, np.int64))
    assert figures(table, Plan(ranks=2, accumulate=1, batch_size=2, budgets=(9,))) is None


def test_alignment_costs_little_and_buckets_are_filled(data: Path) -> None:
    path = data / "metadata" / "calibrated_665k.npz"
    if not path.is_file():
        pytest.skip(f"no {path.name} here")
    table = read_costs(path, ("tiles", "tokens"), 0, 0)
    some = permutation(len(table.costs), 0, 0)[:20_000]
    table = CostTable(table.resources, table.costs[some], table.sources[some])
    plan = Plan(ranks=8, accumulate=16, batch_size=4, budgets=(9, 4096))
    found = figures(table, plan)
    assert found is not None
    plain, aligned = found[""]["efficiency"], found['align={"tokens": 16}']
    assert plain > 0.98
    assert aligned["efficiency"] > plain - 0.01
    assert 0.005 < aligned["padding"] < 0.015
    # Filled alike, steps that are .85 full would be padded to .875 or to 1: 6 % on average.
    assert found["max_shapes=8"]["padding"] < 0.03
