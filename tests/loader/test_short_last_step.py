"""A last step with fewer samples than microbatches is left out where none may be empty."""

import logging
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise import Ranks
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader
from tests.flat_options import flat_balance


def loader(count: int, **more: Any) -> DataLoader:
    given: Any = {"accumulate": 1, "samples_per_step": 4} | more
    drop_last = given.pop("drop_last", False)
    return DataLoader(
        list(range(count)), balance=flat_balance(**given), ranks=Ranks(virtual=4), shuffle=True,
        cost=lambda _: {"n": 1}, drop_last=drop_last,
    )  # fmt: skip


def test_nine_samples_for_four_ranks(caplog: pytest.LogCaptureFixture) -> None:
    made = loader(9)
    with caplog.at_level(logging.WARNING):
        epochs = [list(chain.from_iterable(batch.tolist() for batch in made)) for _ in range(2)]
    assert [len(set(epoch)) for epoch in epochs] == [8, 8]
    assert (made.num_steps, len(made)) == (2, 8)
    assert [step.number for step in made.steps()] == [0, 1]
    (text,) = told(caplog)
    assert text.startswith("the last 1 of 9 samples are left out of every epoch")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]


@pytest.mark.parametrize("mode", ["window", "epoch"])
def test_what_is_left_out_is_told_at_the_epochs_end_where_it_is_not_known_before(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = loader(9, mode=mode, budgets={"n": 1})
    with caplog.at_level(logging.WARNING):
        given = [len(list(chain.from_iterable(batch.tolist() for batch in made))) for _ in range(2)]
    assert given == [8, 8]
    assert [text.partition(":")[0] for text in told(caplog)] == [
        f"1 samples were left out of epoch {epoch}" for epoch in (0, 1)
    ]


def test_what_does_not_divide_by_the_ranks_when_accumulate_is_raised_is_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The microbatches that are too many get a sample each that weighs nothing."""
    made = loader(18, accumulate="auto", samples_per_step=9, budgets={"n": 1})
    with caplog.at_level(logging.WARNING):
        infos = [info for _, info in made.with_info()]
    assert sorted(int(key) for info in infos for key in info.keys) == list(range(18))
    assert [info.empty for info in infos].count(True) == 2 * 3
    assert {info.step_samples for info in infos} == {9}
    assert not told(caplog)
    assert made.left_out == 0


def test_what_drop_last_leaves_out_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    for mode in ("exact", "window", "epoch"):
        made = loader(9, mode=mode, budgets={"n": 1}, drop_last=True)
        with caplog.at_level(logging.WARNING):
            assert len(list(made)) == 8
    assert not told(caplog)


def sampler(count: int, rank: int = 0, **more: Any) -> BalancedBatchSampler:
    balance = Balance(accumulate=1, samples_per_step=4)
    return BalancedBatchSampler({"n": [1] * count}, balance, ranks=(rank, 4), **more)


def test_a_sampler_leaves_out_what_the_loader_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batches = [list(sampler(9, rank)) for rank in range(4)]
    assert [list(map(len, each)) for each in batches] == [[1, 1]] * 4
    assert len(sampler(9)) == 2
    (text,) = told(caplog)
    assert text.startswith("1 of 9 samples were left out of epoch 0")
    made = DataLoader(list(range(9)), batch_sampler=sampler(9))
    assert len(list(made)) == 2


def test_a_sampler_for_a_collate_fn_that_takes_an_empty_list_keeps_all() -> None:
    batches = [list(sampler(9, rank, empty_lists=True)) for rank in range(4)]
    assert [len(each) for each in batches] == [3] * 4
    assert sorted(chain.from_iterable(chain.from_iterable(batches))) == list(range(9))
    assert len(sampler(9, empty_lists=True)) == 3


def test_a_samplers_usual_step_has_a_sample_for_every_microbatch() -> None:
    balance = Balance(accumulate=4, budgets={"n": 10})
    made = BalancedBatchSampler({"n": [10] * 50}, balance, ranks=(0, 4))
    assert made.config.samples_per_step == 16
    assert all(map(len, made))


def test_a_last_step_with_a_sample_for_every_microbatch_stays() -> None:
    made = loader(10, samples_per_step=6)
    assert sorted(chain.from_iterable(batch.tolist() for batch in made)) == list(range(10))
    assert made.num_steps == 2


def test_a_layout_or_collate_fn_that_takes_no_samples_leaves_out_nothing() -> None:
    assert loader(9, layout="padded").num_steps == 3
    made = DataLoader(
        list(range(9)), balance=Balance(samples_per_step=4), ranks=Ranks(virtual=4), shuffle=True,
        cost=lambda _: {"n": 1}, collate_fn=list,
    )  # fmt: skip
    assert sorted(len(batch) for batch in made) == [0] * 3 + [1] * 9


def test_steps_in_which_a_microbatch_must_be_empty_are_refused() -> None:
    with pytest.raises(ValueError, match=r"samples_per_step is 4, but 4 ranks x 2 .* at least 8"):
        loader(9, accumulate=2)


@given(
    count=st.integers(1, 60), ranks=st.integers(1, 5), size=st.integers(5, 12),
    mode=st.sampled_from(["exact", "window", "epoch"]), accumulate=st.sampled_from([1, 2, "auto"]),
    seed=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_microbatch_is_ever_empty(
    count: int, ranks: int, size: int, mode: Any, accumulate: Any, seed: int
) -> None:
    if mode != "exact" and accumulate == "auto":
        return
    costs = np.random.default_rng(seed).integers(1, 7, (count, 1))
    plan = PlanConfig(
        ranks, max(size, 2 * ranks), accumulate, ("n",), (7 if accumulate == "auto" else 60,),
        mode=mode, empty_microbatches=False,
    )  # fmt: skip
    planner = make_planner(plan)
    start = step = 0
    while start < count:
        some = costs[start : start + planner.window_samples]
        found = planner.plan(Window(0, step, start, some, start + len(some) >= count))
        each = [each.ordinals for batch in found.batches for rank in batch.ranks for each in rank]
        assert all(each)
        assert found.left_out == found.consumed - sum(map(len, each))
        start, step = start + found.consumed, step + len(found.batches)
    if mode == "exact":
        assert step == plan.count_steps(count)
