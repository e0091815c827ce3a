"""Costs by index: what is known, from where, and until when."""

import numpy as np

from counterpoise.balancer.run.ahead import LoopCosts
from counterpoise.loader.local.starts import digest_costs
from counterpoise.workers.sources.plain import as_source
from tests.loader import balanced_data as made
from tests.loader.local.settings import Kept

ALL = np.arange(6)


def unknown(costs: LoopCosts) -> list[int]:
    return np.flatnonzero(costs.unknown(ALL)).tolist()


def test_a_table_says_all_costs() -> None:
    table = {"tokens": [3, 1, 4, 1, 5, 9], "tiles": [0, 1, 0, 1, 0, 1]}
    costs = LoopCosts.from_source(as_source(range(6), table), ("tiles", "tokens"))
    assert costs.are_all_known
    assert costs.rows(np.array([5, 0])).tolist() == [[1, 9], [0, 3]]


def test_without_any_each_sample_counts_as_one() -> None:
    costs = LoopCosts.from_source(as_source(range(6)), ("samples",))
    assert costs.rows(ALL).tolist() == [[1]] * 6


def test_what_an_earlier_run_kept_is_looked_up_when_it_is_asked_for() -> None:
    data = Kept(6)
    costs = LoopCosts.from_source(as_source(data), made.RESOURCES)
    assert not costs.are_all_known
    assert unknown(costs) == [0, 3]
    assert costs.rows(ALL)[1].tolist() == [*data.probe(1).cost.values()]


def test_what_was_measured_is_kept_for_the_next_epoch() -> None:
    costs = LoopCosts(6, ("tokens",))
    costs.store(np.array([1, 2]), np.array([[7], [8]]))
    costs.begin_epoch()
    assert unknown(costs) == [0, 3, 4, 5]


def test_a_sample_that_failed_is_measured_again_in_the_next_epoch() -> None:
    costs = LoopCosts(6, ("tokens",))
    costs.store(ALL, np.full((6, 1), 7))
    costs.store_failed(4)
    assert costs.are_all_known
    assert costs.rows(ALL)[4].tolist() == [0]
    costs.begin_epoch()
    assert unknown(costs) == [4]


def test_nothing_is_kept_of_what_does_not_last() -> None:
    costs = LoopCosts(6, ("tokens",))
    costs.store(ALL, np.full((6, 1), 7))
    costs.is_lasting = False
    costs.begin_epoch()
    assert unknown(costs) == [*range(6)]


def test_a_digest_is_of_all_costs_and_their_names() -> None:
    tables = [
        {"tokens": [1, 2, 3, 4, 5, 6]}, {"tokens": [1, 2, 3, 4, 5, 7]},
        {"tiles": [1, 2, 3, 4, 5, 6]},
    ]  # fmt: skip
    found = {digest_costs(LoopCosts.from_source(as_source(range(6), t), tuple(t))) for t in tables}
    assert len(found) == 3
    assert digest_costs(LoopCosts(6, ("tokens",))) == ""
