"""Windows wait for their costs, and fail when they are next."""

import numpy as np
import pytest

from counterpoise.balancer.coordinator.run.known_costs import KnownCosts
from counterpoise.balancer.coordinator.run.planning_feed import PlanningFeed
from counterpoise.balancer.planning.planner import Planner
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.costs import OversizeError
from counterpoise.balancer.protocol.parts import EpochPosition, Probed
from tests.balancer.coordinator.cluster import tracker

CONFIG = PlanConfig(1, 8, 2, ("tokens",), (50,), "balanced")
BEGIN = EpochPosition(0, 0, 0, 0, "")


def _feed(planner, cost_of, known=None):
    count = len(cost_of)
    known = KnownCosts(count, CONFIG.budgets) if known is None else known
    delivery = tracker(1 << 30, label=False)
    delivery.budget.largest_bytes = 1  # small samples: many steps are planned ahead
    order = np.random.default_rng(0).permutation(count)
    return PlanningFeed(0, order, BEGIN, planner, known, delivery)


def _known(cost_of, but=()):
    known = KnownCosts(len(cost_of), CONFIG.budgets)
    indexes = [k for k in range(len(cost_of)) if k not in but]
    known.note(indexes, [(int(cost_of[k]),) for k in indexes], np.ones(len(indexes), np.int64))
    return known


COSTS = np.random.default_rng(1).integers(1, 9, 8 * 40 + 3)


def test_windows_wait_for_costs_that_are_not_known():
    unknown = 100
    feed = _feed(Planner(CONFIG), COSTS, _known(COSTS, but=(unknown,)))
    ordinal = int(np.flatnonzero(feed.order == unknown)[0])
    while feed.start + 8 <= ordinal:
        feed.plan_ahead(3)
        feed.delivery.skip_to((0,), max(feed.delivery.steps) + 1, 0)
    feed.plan_ahead(3)
    assert feed.start == ordinal - ordinal % 8
    (sample,) = feed.samples.next_samples(16, workers=1)
    assert sample.index == unknown
    feed.samples.note_measured(
        feed.store_costs([(sample, Probed(ordinal, "k", (int(COSTS[unknown]),), 1))])
    )
    feed.plan_ahead(3)
    assert feed.start > ordinal


def test_a_window_that_cannot_be_planned_fails_when_it_is_next_and_not_before():
    costs = np.full(8 * 6, 9)
    feed = _feed(Planner(CONFIG), costs, _known(costs))
    crowded = feed.order[8 * 4 : 8 * 5]
    feed.samples.known.note(crowded.tolist(), [(25,)] * 8, np.ones(8, np.int64))
    with pytest.raises(ValueError, match="step 4: 8 samples do not fit the budgets"):
        feed.plan_ahead(6)
    assert feed.step == 4
    assert sorted(feed.delivery.steps) == [0, 1, 2, 3]


class Refusing:
    """A planner that refuses one sample as too large."""

    window_samples = 8

    def __init__(self, ordinal):
        self.ordinal = ordinal

    def plan(self, _):
        raise OversizeError(self.ordinal, "is too large")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_sample_that_is_too_large_is_named_by_its_key_or_its_place(is_known):
    index = int(_feed(Planner(CONFIG), COSTS, _known(COSTS)).order[2])
    feed = _feed(Refusing(2), COSTS, _known(COSTS, but=() if is_known else (index,)))
    for sample in feed.samples.next_samples(8, workers=1):
        feed.store_costs([(sample, Probed(sample.ordinal, "the key", (9,), 1))])
    name = f"{index} of the source" if is_known else "'the key'"
    with pytest.raises(ValueError, match=f"sample {name} is too large"):
        feed.plan_ahead(3)
