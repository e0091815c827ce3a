"""The loaders' arguments: torch's, one Balance, and a sentence for each that moved there."""

import inspect
import re
from itertools import chain
from typing import Any

import pytest
import torch.utils.data as torch_data

import counterpoise.balancer
import counterpoise.loader
from counterpoise import Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader

NEW = {
    "balance", "cost", "key", "ranks", "balancer", "on_error", "skip_keys", "fields",
    "buffer_bytes", "decode_threads", "growing_data", "keep_stats",
}  # fmt: skip


def test_the_arguments_are_torchs_and_a_few() -> None:
    ours = inspect.signature(DataLoader).parameters
    theirs = inspect.signature(torch_data.DataLoader).parameters
    assert set(ours) == set(theirs) | NEW
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind)
    for name in NEW:
        assert ours[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert re.search(rf"(?m)^ {{8}}{name}: ", DataLoader.__doc__ or "")


def test_balance_is_exported_wherever_it_is_used() -> None:
    assert counterpoise.loader.Balance is counterpoise.balancer.Balance is Balance


@pytest.mark.parametrize("name", Balance.__dataclass_fields__)
def test_an_option_that_moved_is_refused_with_the_new_form(name: str) -> None:
    value = Balance.__dataclass_fields__[name].default
    moved: Any = {name: value}
    wanted = re.escape(f"no argument {name}: write balance=Balance({name}={value!r})")
    with pytest.raises(TypeError, match=f"DataLoader has {wanted}"):
        DataLoader([1, 2], **moved)
    with pytest.raises(TypeError, match=f"BalancedBatchSampler has {wanted}"):
        BalancedBatchSampler({"tokens": [1]}, **moved)


def test_the_new_form_can_be_pasted() -> None:
    with pytest.raises(TypeError) as raised:
        DataLoader([1], balance="isf", budgets={"tokens": 9}, accumulate="auto")  # type: ignore[call-arg]
    form = str(raised.value).partition("write balance=")[2]
    assert eval(form) == Balance("isf", {"tokens": 9}, accumulate="auto")


def test_an_argument_that_there_is_not_is_told_the_name_that_was_meant() -> None:
    with pytest.raises(TypeError, match="no argument batchsize; did you mean batch_size="):
        DataLoader([1], batchsize=2)  # type: ignore[call-arg]


def test_grouping_fixed_takes_batch_size() -> None:
    loader = DataLoader(list(range(24)), 3, shuffle=True, balance="fixed", ranks=Ranks(virtual=2))
    batches = [batch.tolist() for batch in loader]
    loader.close()
    assert sorted(chain.from_iterable(batches)) == list(range(24))
    assert {len(batch) for batch in batches} == {3}


def test_without_samples_per_step_a_step_has_batch_size_for_each_microbatch() -> None:
    balance = Balance(accumulate=4)
    loader = DataLoader([0] * 9, 3, shuffle=True, balance=balance, ranks=Ranks(virtual=2))
    assert loader._balanced is not None
    assert loader._balanced.plan.samples_per_step == 2 * 4 * 3
    assert loader._balanced.plan.partition == "multi_resource"
