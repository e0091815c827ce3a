"""`Images(dispatch="images")`: the language model's work alone is balanced, and has budgets."""

from typing import Any

import numpy as np
import pytest

from counterpoise.balancer import Balance, Images, PlanConfig
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import Window

RESOURCES = ("tiles", "tokens")


def config_of(balance: Balance, resources: tuple[str, ...] = RESOURCES) -> PlanConfig:
    return PlanConfig.from_balance(balance, ranks=4, resources=resources, samples_per_step=64)


def plan(balance: Balance, columns: list[int], rng: np.random.Generator) -> list[object]:
    costs = rng.integers(1, 100, (64, 2))[:, columns]
    names = tuple(RESOURCES[column] for column in columns)
    window = Window(0, 0, 0, np.ascontiguousarray(costs), True)
    (batch,) = make_planner(config_of(balance, names)).plan(window).batches
    return [[microbatch.ordinals for microbatch in rank] for rank in batch.ranks]


def test_the_plan_is_that_of_samples_without_tiles() -> None:
    given: dict[str, Any] = {"budgets": {"tokens": 900}, "accumulate": 4}
    images, samples = Balance(images=Images(dispatch="images"), **given), Balance(**given)
    found = plan(images, [0, 1], np.random.default_rng(0))
    assert found == plan(samples, [1], np.random.default_rng(0))
    assert found != plan(samples, [0, 1], np.random.default_rng(0))


def test_a_time_of_tiles_is_no_work() -> None:
    timed = Balance(
        images=Images(dispatch="images"), accumulate=4, work={"tiles": 90_000, "tokens": 1}
    )
    found = plan(timed, [0, 1], np.random.default_rng(0))
    assert found == plan(Balance(accumulate=4), [1], np.random.default_rng(0))


@pytest.mark.parametrize("names", [("tiles",), ("tiles", "label_tokens")])
def test_something_must_be_left_to_balance(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="samples cost tiles only, which travel"):
        config_of(Balance(images=Images(dispatch="images")), names)


def test_patches_travel_as_tiles_do() -> None:
    found = config_of(Balance(images=Images(dispatch="images")), ("patches", "tokens", "images"))
    assert found.dispatched == ("patches", "images")


def test_something_must_travel() -> None:
    with pytest.raises(ValueError, match="samples cost tokens, no tiles, patches or images"):
        config_of(Balance(images=Images(dispatch="images")), ("tokens",))
