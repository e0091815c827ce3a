"""Windows that are planned together have the plans that they have one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window

CONFIG = PlanConfig(
    ranks=1,
    samples_per_step=16,
    accumulate=4,
    resources=("tiles", "tokens", "label_tokens"),
    budgets=(16, 1600, None),
    grouping="balanced",
    seed=3,
)


def _costs(samples: int, seed: int = 0, factor: int = 1):
    draw = np.random.default_rng(seed)
    tiles = draw.integers(0, 5, samples)
    tokens = draw.lognormal(5, 0.6, samples).clip(1, 1000).astype(np.int64) * factor
    return np.stack([tiles, tokens, tokens // 3], axis=1)


def _one_by_one(planner, windows):
    size = planner.window_samples
    return [
        planner.plan(
            Window(
                windows.epoch,
                windows.step + number,
                windows.start + number * size,
                windows.costs[number * size : (number + 1) * size],
                windows.last,
            )
        )
        for number in range(len(windows.costs) // size)
    ]


@settings(deadline=None, max_examples=150)
@given(
    size=st.sampled_from([4, 6, 16, 64]),
    accumulate=st.sampled_from([1, 2, 4, 4, "auto"]),
    count=st.integers(1, 6),
    room=st.sampled_from([1.05, 1.3, 3.0]),
    limited=st.sampled_from([(0, 1), (0,), (1,)]),
    oversize=st.sampled_from(["alone", "refuse", "error"]),
    factor=st.sampled_from([1, 1, 1000, 2**20]),
    seed=st.integers(0, 2**20),
)
def test_plans_are_those_of_each_window_alone(
    size, accumulate, count, room, limited, oversize, factor, seed
):
    costs = _costs(size * count, seed, factor)
    microbatches = size * count / 16 if accumulate == "auto" else accumulate * count
    shares = [int(room * costs[:, k].sum() / microbatches) + 1 for k in (0, 1)]
    budgets = tuple(shares[k] if k in limited else None for k in (0, 1))
    config = replace(
        CONFIG,
        samples_per_step=size,
        accumulate=accumulate,
        budgets=(*budgets, None),
        oversize=oversize,
        seed=seed,
    )
    planner, windows = make_planner(config), Window(2, 7, 100, costs, False)
    found = planner.plan_several(windows)
    cut = Window(2, 7, 100, costs[: size * len(found)], False)
    assert list(found) == _one_by_one(planner, cut)


def test_windows_of_a_usual_job_are_all_planned_together():
    windows = Window(0, 0, 0, _costs(16 * 8), False)
    assert len(make_planner(CONFIG).plan_several(windows)) == 8


def test_the_first_window_that_is_not_plain_and_all_after_it_are_left_to_plan():
    planner, costs = make_planner(CONFIG), _costs(16 * 4)
    for bad in ((17, 1, 0), (0, 1601, 0)):
        changed = costs.copy()
        changed[2 * 16 + 5] = bad  # over budget by itself
        assert len(planner.plan_several(Window(0, 0, 0, changed, False))) == 2
    crowded = costs.copy()
    crowded[16:32, 0] = 5  # more than the budgets of four microbatches
    assert len(planner.plan_several(Window(0, 0, 0, crowded, False))) == 1


@pytest.mark.parametrize("bad", [-1, 2**40 + 1])
def test_costs_that_cannot_be_planned_are_left_to_plan_which_says_so(bad):
    costs = _costs(32)
    costs[3, 2] = bad
    assert make_planner(CONFIG).plan_several(Window(0, 0, 0, costs, False)) == ()
    floats = _costs(32).astype(float)
    assert make_planner(CONFIG).plan_several(Window(0, 0, 0, floats, False)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 2},
        {"mode": "window"},
        {"grouping": "isf"},
        {"partition": "greedy"},
        {"budgets": (None, None, None)},
        {"padded": ("tokens",)},
        {"counts": "equal", "oversize": "refuse"},
        {"align": "tiles"},
        {"time_ns": (("tokens", 4),)},
    ],
)
def test_other_configurations_are_planned_window_by_window(change):
    config = replace(CONFIG, **change)
    assert make_planner(config).plan_several(Window(0, 0, 0, _costs(64), False)) == ()
