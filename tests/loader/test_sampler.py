"""BalancedBatchSampler: torch's DataLoader with balanced batches, resumable anywhere."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from counterpoise.loader import Balance, BalancedBatchSampler

BUDGETS = {"tiles": 9, "tokens": 4096}


def costs(samples: int = 600, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"tiles": rng.integers(0, 6, samples), "tokens": rng.integers(20, 2000, samples)}


def sampler(rank: int = 0, ranks: int = 2, **changes: Any) -> BalancedBatchSampler:
    names = ("accumulate_from", "empty_lists")
    start: Any = {name: changes.pop(name) for name in names if name in changes}
    options: Any = {"accumulate": 4, **changes}
    balance = Balance(budgets=BUDGETS, **options)
    return BalancedBatchSampler(costs(), balance, ranks=(rank, ranks), **start)


@given(
    ranks=st.integers(1, 5),
    mode=st.sampled_from(["exact", "window", "epoch"]),
    epoch=st.integers(0, 3),
)
@settings(max_examples=25, deadline=None)
def test_all_ranks_together_give_each_sample_once(ranks: int, mode: str, epoch: int) -> None:
    auto = "auto" if mode == "exact" else 4
    shares = []
    for rank in range(ranks):
        one = sampler(
            rank, ranks, mode=mode, accumulate=auto, accumulate_from=4 if auto == "auto" else 1,
            empty_lists=True,
        )  # fmt: skip
        one.set_epoch(epoch)
        shares.append(list(one))
        assert len(one) == len(shares[-1])
    assert len({len(share) for share in shares}) == 1
    assert Counter(k for share in shares for batch in share for k in batch) == Counter(range(600))
    for share in shares:
        for batch in share:
            for name, column in costs().items():
                assert column[batch].sum() <= BUDGETS[name]


def test_exact_steps_are_the_reference_shuffles() -> None:
    shares = [list(sampler(rank, samples_per_step=15)) for rank in range(2)]
    generator = torch.Generator()
    generator.manual_seed(0)
    order = torch.randperm(600, generator=generator).tolist()
    for step in range(40):
        batches = [share[4 * step + k] for share in shares for k in range(4)]
        found = sorted(k for batch in batches for k in batch)
        assert found == sorted(order[15 * step : 15 * step + 15])


@pytest.mark.parametrize("mode", ["exact", "window"])
@pytest.mark.parametrize("taken", [0, 1, 7, 64, 10_000])
def test_a_resumed_sampler_goes_on_with_the_same_batches(mode: str, taken: int) -> None:
    settings_: dict[str, Any] = {"mode": mode, "accumulate": "auto", "accumulate_from": 4}
    whole = sampler(**settings_)
    whole.set_epoch(1)
    everything = list(whole)
    first = sampler(**settings_)
    first.set_epoch(1)
    for _, _ in zip(range(taken), first, strict=False):
        pass
    state = json.loads(json.dumps(first.state_dict()))
    second = sampler(**settings_)
    second.load_state_dict(state)
    assert second.state_dict() == state
    second.set_epoch(1)
    assert list(second) == everything[min(taken, len(everything)) :]


def test_a_state_can_stand_before_what_was_fetched_ahead() -> None:
    first = sampler(mode="window")
    everything = list(first)
    state = first.state_dict(delivered=3)
    second = sampler(mode="window")
    second.load_state_dict(state)
    assert list(second) == everything[3:]
    with pytest.raises(ValueError, match="given out"):
        second.state_dict(delivered=10_000)


def test_another_configuration_cannot_resume() -> None:
    state = sampler().state_dict()
    with pytest.raises(ValueError, match="digest"):
        sampler(seed=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((costs(), Balance(budgets={"frames": 3})), "budgets name frames, but samples cost tiles,"),
        (({},), "costs are empty"),
        (({"a": [1, 2], "b": [1]},), "one number per sample"),
        ((costs(),), "give budgets"),
        ((costs(), Balance(layout="packed")), "give collate_fn=collate_packed to torch"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        BalancedBatchSampler(*arguments)


def test_a_rank_and_a_start_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="of 2 ranks, rank may be 0 to 1"):
        sampler(rank=2)
    with pytest.raises(ValueError, match="accumulate_from is 16, but accumulate is 4"):
        sampler(accumulate_from=16)


def labelled_sampler(rank: int, mode: str) -> BalancedBatchSampler:
    columns = {**costs(), "label_tokens": costs(seed=1)["tokens"] // 2}
    rows: dict[str, Any] = {"accumulate": 3}
    if mode == "exact":
        rows = {"accumulate": "auto", "samples_per_step": 24}
    balance = Balance(budgets=BUDGETS, mode=mode, **rows)  # type: ignore[arg-type]
    return BalancedBatchSampler(columns, balance, ranks=(rank, 2))


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
def test_info_says_where_steps_end_and_what_each_batch_weighs(mode: str) -> None:
    samplers = [labelled_sampler(rank, mode) for rank in range(2)]
    given_out = [list(each) for each in samplers]
    infos = [[one.info(k) for k in range(one.given)] for one in samplers]
    labels = costs(seed=1)["tokens"] // 2
    for share, described in zip(given_out, infos, strict=True):
        for batch, info in zip(share, described, strict=True):
            assert info.keys == tuple(map(str, batch))
            assert (info.samples, info.label_tokens) == (len(batch), labels[batch].sum())
            assert info.costs["tokens"] == costs()["tokens"][batch].sum()
    # steps end at the same batches on both ranks, and what a step weighs is the sum of its batches
    assert [i.last for i in infos[0]] == [i.last for i in infos[1]]
    steps = sorted({info.step for info in infos[0]})
    assert steps == list(range(sum(info.last for info in infos[0])))
    for step in steps:
        own = [[info for info in each if info.step == step] for each in infos]
        everywhere = [info for each in own for info in each]
        assert {i.step_samples for i in everywhere} == {sum(i.samples for i in everywhere)}
        assert {i.step_label_tokens for i in everywhere} == {
            sum(i.label_tokens for i in everywhere)
        }
        for each in own:
            assert {i.rank_label_tokens for i in each} == {sum(i.label_tokens for i in each)}


def test_info_is_that_of_the_batch_under_torchs_prefetch_and_after_a_resume() -> None:
    one = labelled_sampler(0, "window")
    loader = DataLoader(range(600), batch_sampler=one, collate_fn=list, num_workers=1)  # type: ignore[arg-type]
    seen = [(batch, one.info(k)) for k, batch in enumerate(loader)]
    assert all(info.keys == tuple(map(str, batch)) for batch, info in seen)
    second = labelled_sampler(0, "window")
    second.load_state_dict(one.state_dict(delivered=7))
    assert second.given == 7
    rest = [(batch, second.info(k)) for k, batch in enumerate(second, second.given)]
    assert rest == seen[7:]


def test_info_of_windows_that_are_not_kept_is_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = labelled_sampler(1, "exact")
    given_out = list(one)
    expected = [one.info(k) for k in range(one.given)]
    monkeypatch.setattr("counterpoise.loader.sampler.KEPT_WINDOWS", 2)
    other = labelled_sampler(1, "exact")
    assert list(other) == given_out
    assert [other.info(k) for k in range(other.given)] == expected


def test_info_of_a_batch_that_was_not_given_out_is_an_error() -> None:
    one = labelled_sampler(0, "exact")
    batches = iter(one)
    next(batches)
    assert one.info(0).microbatch == 0
    for index in (-1, 1):
        with pytest.raises(IndexError, match=r"epoch 0 the batches from 0 up to 1 \(not included"):
            one.info(index)
