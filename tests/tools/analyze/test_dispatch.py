"""What images that travel gain, worked out by hand, and as people read it."""

from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.tools.analyze.model.alternatives import dispatch_figures
from counterpoise.tools.analyze.model.forecast import Forecast
from counterpoise.tools.analyze.model.strategies import Plan, micro_steps
from counterpoise.tools.analyze.printed import _dispatch
from counterpoise.tools.inputs.cost_tables import CostTable

NAMES = ("tiles", "tokens")
# Half of the tokens are in one sample, so of two ranks one has it alone: 5 tiles beside 2.
COSTS = np.array([[5, 10], [2, 6], [0, 3], [0, 1]])
PLAN = Plan(ranks=2, accumulate=1, batch_size=2, tile_tokens=1)


def figures(costs: Int64, names: tuple[str, ...] = NAMES, **changes: Any) -> dict[str, Any] | None:
    table = CostTable(names, costs, np.zeros(len(costs), np.int64))
    plan = Plan(**{**{name: getattr(PLAN, name) for name in PLAN.__slots__}, **changes})
    steps = {"balanced": micro_steps("balanced", table, plan)}
    return dispatch_figures(Forecast(table, plan, steps))


def test_a_step_of_four_samples_is_as_worked_out_by_hand() -> None:
    found = figures(COSTS)
    assert found is not None
    # The encoder's 7 tiles take 5 with whole samples and 4, of 3.5 at best, if they travel.
    assert found["samples"] == pytest.approx(
        {"encoder": 1 - 7 / 10, "llm": 0, "waiting": 1 - 27 / 30, "time": 1}
    )
    assert found["images"] == pytest.approx(
        {"encoder": 1 - 7 / 8, "llm": 0, "waiting": 1 - 27 / 28, "time": 28 / 30}
    )


def test_budgets_of_what_travels_limit_nothing() -> None:
    limited = figures(COSTS, mode="window", budgets=(5, None))
    whole = figures(COSTS)
    assert limited is not None
    assert whole is not None
    assert limited["images"]["encoder"] == pytest.approx(whole["images"]["encoder"])


@pytest.mark.parametrize(
    ("costs", "names"),
    [
        (COSTS[:, 1:], ("tokens",)),
        (COSTS * [0, 1], NAMES),
        (COSTS * [1, 0], NAMES),
        (COSTS, ("tiles", "images")),
    ],
)
def test_without_both_kinds_of_work_there_is_nothing_to_say(
    costs: Int64, names: tuple[str, ...]
) -> None:
    assert figures(costs, names) is None


def test_the_terminal_shows_both() -> None:
    columns = _dispatch(figures(COSTS) or {}).columns
    assert [*zip(*(column.cells for column in columns), strict=True)] == [
        ('dispatch="samples"', "30.0 %", "0.0 %", "10.0 %", "100.0 %"),
        ('dispatch="images"', "12.5 %", "0.0 %", "3.6 %", "93.3 %"),
    ]
