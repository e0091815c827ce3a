"""What a plan is foretold to do, worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.planning.forecast import Outlook, forecast
from counterpoise.balancer.planning.problem.config import PlanConfig

TIMES = (("tiles", 1), ("tokens", 1))
# Half of the tokens are in one sample, so of two ranks one has it alone: 5 tiles beside 2.
COSTS = np.array([[5, 10], [2, 6], [0, 3], [0, 1]])


def config(**changes: Any) -> PlanConfig:
    given: dict[str, Any] = {"resources": ("tiles", "tokens"), "budgets": (None, None)}
    given |= {"ranks": 2, "samples_per_step": 4, "accumulate": 1, "time_ns": TIMES}
    return PlanConfig(**(given | changes))


def foretold(plan: PlanConfig, costs: Any = COSTS, **more: Any) -> Outlook:
    told = forecast(plan, np.array(costs), 2, **more)
    assert told is not None
    return told


def test_ranks_wait_after_the_encoder_and_after_the_language_model() -> None:
    told = foretold(config())
    assert told.waiting == pytest.approx(1 - (7 + 20) / (2 * (5 + 10)))
    # random order: 7 tiles and 16 tokens beside 0 and 4
    assert told.waited == pytest.approx(1 - (7 + 20) / (2 * (7 + 16)))
    assert told.time == pytest.approx((5 + 10) / (7 + 16))
    assert told.largest == {"tiles": 5, "tokens": 10}
    assert told.largest_random == {"tiles": 7, "tokens": 16}


def test_ranks_that_meet_once_a_step_wait_for_all_that_another_does() -> None:
    told = foretold(config(waits="step"))
    assert told.waited == pytest.approx(1 - 27 / (2 * 23))


def test_images_that_travel_are_encoded_by_all_alike() -> None:
    told = foretold(config(dispatched=("tiles",)), now=config())
    assert told.waiting == 0
    assert told.time == pytest.approx((3.5 + 10) / (7 + 16))


def test_a_padded_microbatch_takes_count_times_the_largest() -> None:
    padded = config(padded=("tokens",))
    told = foretold(config(), now=padded)
    assert told.time == pytest.approx((5 + 10) / (7 + 2 * 10))
    assert told.padding == 0
    assert told.padding_random == pytest.approx(1 - 27 / (7 + 20 + 6))
    assert told.largest_random["tokens"] == 20


def test_what_fills_samples_up_to_a_multiple_is_padding_and_no_cost_of_packed_ones() -> None:
    padded, rounded = config(padded=("tokens",)), np.array([[5, 12], [2, 8], [0, 4], [0, 4]])
    told = foretold(config(), rounded, now=padded, alone=COSTS)
    assert told.time == pytest.approx((5 + 10) / (7 + 2 * 12))
    assert told.padding_random == pytest.approx(1 - 27 / (7 + 24 + 8))
    assert foretold(padded, rounded, alone=COSTS).padding > 0


def test_too_few_samples_for_a_step_come_again_and_again() -> None:
    told = foretold(config(samples_per_step=16, accumulate=4), [[0, 5], [0, 5]])
    assert (told.waiting, told.waited, told.time, told.samples) == (0, 0, 1, 2)


def test_refused_samples_are_in_no_microbatch_and_in_no_mean() -> None:
    costs = [[0, 4], [0, 4], [0, 4], [0, 9]] * 8
    told = foretold(config(budgets=(None, 8), accumulate="auto", oversize="error"), costs)
    assert told.largest["tokens"] <= 8
    alone = foretold(config(budgets=(None, 8), accumulate="auto", oversize="refuse"), costs)
    assert told == alone


def test_work_that_is_none_has_no_forecast() -> None:
    assert forecast(config(), COSTS * 0, 2) is None


def test_only_whole_steps_count_in_windows() -> None:
    rng = np.random.default_rng(0)
    costs = np.column_stack([rng.integers(0, 5, 999), rng.integers(9, 99, 999)])
    plan = config(samples_per_step=32, accumulate=2, budgets=(100, 2000), mode="window", time_ns=())
    told = foretold(plan, costs, most_steps=100)
    exact = foretold(replace(plan, mode="exact", accumulate="auto"), costs, most_steps=100)
    assert told.waited == exact.waited
    assert told.waiting < 0.05
