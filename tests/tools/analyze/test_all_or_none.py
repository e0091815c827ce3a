"""What `analyze` says of images that only some ranks have, against a table worked out by hand."""

import numpy as np
import pytest

from counterpoise.tools.analyze.model.alternatives import all_or_none_figures
from counterpoise.tools.analyze.model.forecast import make_forecast
from counterpoise.tools.analyze.model.strategies import Plan
from counterpoise.tools.inputs.cost_tables import CostTable

# One step of 2 ranks x 2 microbatches x 2 samples: two samples have all the images.
COSTS = [[2, 10], [2, 10], [0, 10], [0, 10], [0, 10], [0, 10], [0, 10], [0, 10]]


def figures(costs: list[list[int]]) -> dict[str, dict[str, float]] | None:
    table = CostTable(("tiles", "tokens"), np.array(costs), np.zeros(len(costs), np.int64))
    plan = Plan(ranks=2, accumulate=2, batch_size=2, budgets=(None, 20), tile_tokens=5)
    return all_or_none_figures(make_forecast(table, plan))


def test_the_two_images_go_to_one_row() -> None:
    found = figures(COSTS)
    assert found is not None
    # side by side, ranks have a tile's work each and wait for nobody
    assert found["matched"] == {"mixed": 0.0, "microbatch": 0.0, "step": 0.0}
    assert found["given"]["mixed"] in (0.0, 1.0)


def test_a_single_image_leaves_a_mixed_row_and_its_waiting() -> None:
    found = figures([[4, 10], *([0, 10] for _ in range(7))])
    assert found is not None
    # 4 tiles of 5 on one rank: 2 x (20 + 2 x 20) places of time for 20 + 8 x 10 of work
    for plan in ("given", "matched"):
        assert found[plan]["mixed"] == 0.5
        assert found[plan]["microbatch"] == pytest.approx(1 - 100 / 120)


@pytest.mark.parametrize("tiles", [0, 3])
def test_nothing_is_said_where_all_samples_have_images_or_none(tiles: int) -> None:
    assert figures([[tiles, 10]] * 8) is None
