"""An epoch's plan, window by window, is the same from wherever it is gone on with."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.parts import EpochPosition
from tests.balancer.run.plans import config, costs_of, feed, plans, seen, take, values


@given(plan=plans, costs=values)
def test_each_sample_is_in_one_step_refused_or_left_out(plan: PlanConfig, costs: list[int]) -> None:
    source = feed(plan, costs_of(costs))
    steps = take(source)
    found = Counter(ordinal for step in steps for ordinal in step.all_ordinals())
    assert set(found.values()) <= {1}
    rest = len(costs) - found.total()
    assert rest == source.left_out or plan.drop_last
    assert [step.number for step in steps] == [*range(len(steps))]


@given(plan=plans, costs=values, data=st.data())
def test_a_feed_from_a_position_gives_the_steps_after_it(
    plan: PlanConfig, costs: list[int], data: st.DataObject
) -> None:
    steps = take(feed(plan, costs_of(costs)))
    place = data.draw(st.integers(0, len(steps)))
    at = steps[place - 1].after.reached() if place else EpochPosition(0, 0, 0, 0, "")
    rest = take(feed(plan, costs_of(costs), at))
    assert [each.number for each in rest] == [each.number for each in steps[place:]]
    assert [each.batch for each in rest] == [each.batch for each in steps[place:]]


@given(plan=plans, costs=values, epoch=st.integers(0, 3))
def test_indexes_and_costs_are_those_of_the_ordinals(
    plan: PlanConfig, costs: list[int], epoch: int
) -> None:
    source = feed(plan, costs_of(costs), epoch=epoch)
    for step in take(source):
        ordinals = sorted(step.all_ordinals())
        indexes = step.find_indexes(ordinals)
        assert indexes == source.order[ordinals].tolist()
        assert step.find_costs(ordinals)[:, 0].tolist() == [costs[index] for index in indexes]
        assert step.spares


def test_a_position_that_the_plan_does_not_have_is_refused() -> None:
    plan, costs = config(mode="window"), costs_of([5] * 40)
    steps = take(feed(plan, costs))
    beyond = EpochPosition(0, 0, len(steps) + 99, 0, "")
    with pytest.raises(ValueError, match="the window it stands in ends with step"):
        take(feed(plan, costs, beyond))
    inside = EpochPosition(0, 0, 0, steps[0].microbatches, "")
    with pytest.raises(ValueError, match="the ledger is at microbatch"):
        take(feed(plan, costs, inside))


def test_a_sample_over_budget_is_named() -> None:
    source = feed(config(oversize="error"), costs_of([5, 5, 50, 5, 5, 5]))
    source.name_of = "n{}".format
    with pytest.raises(ValueError, match=r"sample 'n2' is over budget by itself \(50 tokens of 40"):
        take(source)


def test_the_same_step_is_seen_twice() -> None:
    first, second = (take(feed(config(), costs_of([*range(30)]))) for _ in range(2))
    assert [*map(seen, first)] == [*map(seen, second)]
