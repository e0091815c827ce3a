"""No argument of a loader is dropped without a word, and a balanced loader's order is said."""

from itertools import chain
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings, strategies as st

import counterpoise as cp
from counterpoise.balancer import Images
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, RemoteDataset

BUDGETS = {"n": 9}
ONLY_BALANCED: dict[str, Any] = {
    "ranks": (0, 1), "cost": len, "key": str, "balancer": "tcp://127.0.0.1:5555",
    "buffer_bytes": 1 << 20,
}  # fmt: skip


@pytest.mark.parametrize("name", ONLY_BALANCED)
def test_what_only_a_balanced_loader_has_is_refused_without_balance(name: str) -> None:
    arguments: Any = {name: ONLY_BALANCED[name]}
    with pytest.raises(ValueError, match=f"{name} needs a balanced loader"):
        DataLoader([1], **arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"batch_size": 4, "balance": Balance(samples_per_step=8)},
            "batch_size is 4, but samples_per_step is 8 and grouping 'balanced' decides",
        ),
        (
            {"batch_size": 4, "balance": Balance("isf", BUDGETS, samples_per_step=8)},
            "batch_size is 4, .* grouping 'isf' decides how many .*: leave batch_size",
        ),
        (
            {"batch_size": 4, "balance": Balance(budgets=BUDGETS)},
            r"give Balance\(samples_per_step=...\), the global batch .* instead of batch_size=4",
        ),
        ({"balance": Balance(budgets=BUDGETS)}, r"give Balance\(samples_per_step=...\)"),
        (
            {"balance": Balance("fixed", images=Images(dummy_tile=3))},
            "dummy_tile is 3, .* leave dummy_tile",
        ),
        (
            {"dataset": RemoteDataset("*.tar"), "balance": "fixed", "cost": len},
            "cost is for a dataset in this process",
        ),
        (
            {"dataset": RemoteDataset("*.tar"), "balance": "fixed", "key": str},
            "key is for a dataset in this process",
        ),
    ],
)
def test_arguments_that_others_leave_without_effect_are_refused(
    arguments: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        DataLoader(**{"dataset": [1, 2], "shuffle": True, **arguments})


def test_without_budgets_batch_size_is_what_steps_are_made_of() -> None:
    made = DataLoader(
        [0] * 24, 3, shuffle=True, balance=Balance(accumulate=2), ranks=cp.Ranks(virtual=2)
    )
    assert made.num_steps == 2


def test_a_balanced_loader_has_no_default_for_shuffle() -> None:
    with pytest.raises(ValueError, match=r"give shuffle=True .*, or shuffle=False for the data's"):
        DataLoader([1, 2], balance="fixed")


@pytest.mark.parametrize("mode", ["window", "epoch"])
def test_a_mode_that_moves_samples_between_steps_has_no_order_of_the_data(mode: Any) -> None:
    balance = Balance(budgets=BUDGETS, samples_per_step=4, mode=mode)
    for make in (
        lambda: DataLoader([1] * 8, shuffle=False, balance=balance, cost={"n": [1] * 8}),
        lambda: BalancedBatchSampler({"n": [1] * 8}, balance, shuffle=False),
    ):
        with pytest.raises(ValueError, match=f"mode '{mode}' moves samples between steps"):
            make()


@given(
    count=st.integers(3, 60), ranks=st.integers(1, 3), size=st.integers(3, 20),
    grouping=st.sampled_from(["balanced", "isf"]), budget=st.sampled_from([None, 7, 30]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_in_the_datas_order_each_step_has_the_next_samples_and_each_comes_once(
    count: int, ranks: int, size: int, grouping: Any, budget: int | None
) -> None:
    budgets = {} if budget is None else {"n": budget}
    balance = Balance(grouping, budgets, samples_per_step=size, accumulate="auto")
    loader = DataLoader(
        list(range(count)), shuffle=False, balance=balance, ranks=cp.Ranks(virtual=ranks),
        collate_fn=list,
        cost={"n": [1 + 5 * number % 7 for number in range(count)]},
    )  # fmt: skip
    steps = [sorted(chain.from_iterable(step.microbatches)) for step in loader.steps()]
    numbers = list(range(count))
    assert steps == [numbers[begin : begin + size] for begin in range(0, count, size)]


def test_torchs_loader_is_told_apart_from_ours_by_its_module() -> None:
    theirs, samples = "torch.utils.data.dataloader.DataLoader", cast("Any", [1])
    with pytest.raises(ValueError, match=f"takes a counterpoise.DataLoader.*got .*{theirs}"):
        cp.adapters.prepare_accelerate(None, torch.utils.data.DataLoader(samples))
