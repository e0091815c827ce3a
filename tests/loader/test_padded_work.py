"""Padded work through a loader: costs are count x longest, and weights are those of free counts."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader
from tests.flat_options import flat_balance

LENGTHS = np.random.default_rng(1).lognormal(3, 0.8, 70).astype(int).clip(1).tolist()
COSTS = {"tokens": LENGTHS, "label_tokens": [n // 2 for n in LENGTHS]}


def loader(**options: Any) -> DataLoader:
    balance = flat_balance(**{"work": "padded", "samples_per_step": 32, "accumulate": 2, **options})
    return DataLoader(
        list(range(70)), balance=balance, shuffle=True, cost=COSTS, collate_fn=list,
        key="{}".format, ranks=Ranks(virtual=4),
    )  # fmt: skip


@pytest.mark.parametrize("counts", ["equal", "free"])
def test_infos_say_what_a_padded_microbatch_costs_and_weighs(counts: Any) -> None:
    made, seen = loader(counts=counts), []
    for _ in made:
        info = made.step_info
        assert info is not None
        own = [int(key) for key in info.keys]
        seen.append(info)
        longest = max((LENGTHS[n] for n in own), default=0)
        assert info.costs.get("tokens", 0) == len(own) * longest
        assert info.label_tokens == sum(COSTS["label_tokens"][n] for n in own)
        assert info.samples == len(own)
    assert sorted(int(key) for info in seen for key in info.keys) == list(range(70))
    whole = [info for info in seen if info.step < 2]
    assert {info.step_samples for info in whole} == {32}
    for step in (0, 1):
        assert sum(info.samples for info in whole if info.step == step) == 32
    counted = {info.samples for info in whole}
    assert (counted == {4}) == (counts == "equal")
    assert min(counted) > 0


def test_over_budget_is_count_times_longest_and_then_a_sample_is_alone() -> None:
    budget = max(LENGTHS) - 1
    made, over = loader(budgets={"tokens": budget}, accumulate="auto"), []
    for _ in made:
        info = made.step_info
        assert info is not None
        if info.over_budget:
            over.append((info.keys, info.costs["tokens"]))
        else:
            assert info.costs.get("tokens", 0) <= budget
    longest = LENGTHS.index(max(LENGTHS))
    assert over == [((str(longest),), budget + 1)]


def test_a_resumed_epoch_goes_on_with_the_same_microbatches() -> None:
    whole = list(loader(counts="free"))
    made = loader(counts="free")
    first = [batch for _, batch in zip(range(9), made, strict=False)]
    resumed = loader(counts="free")
    resumed.load_state_dict(made.state_dict())
    assert first + list(resumed) == whole
    with pytest.raises(ValueError, match="only the very same plan"):
        loader(counts="equal").load_state_dict(made.state_dict())


def test_a_sampler_plans_it_too_and_asks_for_the_size_of_a_step() -> None:
    balance = Balance(work="padded", counts="equal", samples_per_step=14, accumulate=1)
    each = [BalancedBatchSampler(COSTS, balance, ranks=(rank, 2)) for rank in range(2)]
    batches = [list(sampler) for sampler in each]
    assert sorted(chain(*chain(*batches))) == list(range(70))
    assert {len(batch) for batch in chain(*batches)} == {7}
    with pytest.raises(ValueError, match="give samples_per_step"):
        BalancedBatchSampler(COSTS, Balance(work="padded"), ranks=(0, 1))
