"""A sample over budget by itself is told: logged with its figures, in StepInfo, or an error."""

import logging
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.loader.balanced.step_infos import padded_areas

TOKENS = [3, 4, 50, 2, 5, 60, 1, 2]


def loader(oversize: Any, workers: int = 0, budget: int = 9) -> DataLoader:
    balance = Balance(
        budgets={"tokens": budget}, samples_per_step=4, accumulate="auto", oversize=oversize
    )
    return DataLoader(
        list(range(8)), balance=balance, shuffle=False, cost={"tokens": TOKENS}, collate_fn=list,
        num_workers=workers, key="n{}".format,
    )  # fmt: skip


def rows(samples: list[int], left: bool = False) -> torch.Tensor:
    """Return texts of as many ones as TOKENS say, filled up with -1 at one end."""
    each = [torch.ones(TOKENS[sample], dtype=torch.int64) for sample in samples]
    side = "left" if left else "right"
    return pad_sequence(each, batch_first=True, padding_value=-1, padding_side=side)


def as_field(samples: list[int]) -> dict[str, Any]:
    """Return a batch as Hugging Face's collators make it, with something beside."""
    found = rows(samples)
    return {"tiles": torch.ones(len(samples), 3), "attention_mask": (found > 0).int()}


def as_pair(samples: list[int]) -> tuple[Any, ...]:
    """Return a batch that is filled up before its rows."""
    return torch.ones(len(samples)), rows(samples, left=True)


def nested(samples: list[int]) -> dict[str, Any]:
    """Return a batch whose rows are below another name, as those of several models."""
    return {"text": as_field(samples), "samples": len(samples)}


def as_object(samples: list[int]) -> Any:
    """Return a batch that has attributes."""
    return SimpleNamespace(**as_field(samples))


def marked(samples: list[int]) -> torch.Tensor:
    """Return rows to which a processor has added where texts begin and end."""
    each = [torch.ones(TOKENS[sample] + 3, dtype=torch.int64) for sample in samples]
    return pad_sequence(each, batch_first=True, padding_value=-1)


@pytest.mark.parametrize("collate", [rows, as_field, as_pair, nested, as_object, marked])
@pytest.mark.parametrize("workers", [0, 1])
def test_padding_that_no_budget_counts_is_told_once(
    collate: Any, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    balance = Balance(budgets={"tokens": 70}, samples_per_step=4)
    given: Any = {"cost": {"tokens": TOKENS}, "collate_fn": collate, "num_workers": workers}
    made = DataLoader(list(range(8)), balance=balance, shuffle=False, **given)
    with caplog.at_level(logging.WARNING):
        assert len(list(made)) == len(list(made)) == 2
    (told_of,) = [e.getMessage() for e in caplog.records if "is padded to" in e.getMessage()]
    padded = 212 if collate is marked else 200
    assert f"a batch of 4 samples has 59 tokens, and is padded to {padded}" in told_of
    assert "over the budget of 70" in told_of
    assert 'Balance(work="padded")' in told_of


def test_padding_within_a_budget_and_other_tensors_are_not_told() -> None:
    batch = {"ids": rows([0, 1, 3]), "one_hot": torch.eye(3)[:, :2], "wide": torch.ones(3, 100)}
    assert (12, 9) in [*padded_areas(batch, 3)]
    assert not [*padded_areas({"wide": torch.ones(3, 100), "other": torch.ones(2, 9)}, 3)]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "over budget" in each.getMessage()]


def test_the_first_is_logged_with_figures_and_the_number_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, found = loader("alone"), []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            infos = [info for step in made.steps() for info in step.infos]
            found.append([info.keys for info in infos if info.over_budget])
            assert {info.over_budget for info in infos} == {(), ("tokens",)}
    assert found == [[("n2",), ("n5",)]] * 2
    first, number = told(caplog)
    assert first.startswith("sample 'n2' is over budget (50 tokens of 9)")
    assert number.startswith(f"2 of this process' {len(infos)} microbatches")


def test_a_sampler_logs_them_too(caplog: pytest.LogCaptureFixture) -> None:
    balance = Balance(budgets={"tokens": 9}, samples_per_step=4, accumulate="auto")
    sampler = BalancedBatchSampler({"tokens": TOKENS}, balance, shuffle=False)
    with caplog.at_level(logging.WARNING):
        batches = [batch for _ in range(2) for batch in sampler]
    assert batches.count([2]) == batches.count([5]) == 2
    first, number = told(caplog)
    assert first.startswith("sample '2' is over budget (50 tokens of 9)")
    assert number.startswith(f"2 of this process' {len(batches) // 2} microbatches")


def test_within_budgets_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        infos = [info for step in loader("alone", budget=60).steps() for info in step.infos]
    assert not told(caplog)
    assert {info.over_budget for info in infos} == {()}


@pytest.mark.parametrize("workers", [0, 1])
def test_oversize_error_ends_the_run_and_names_the_sample(workers: int) -> None:
    made = loader("error", workers)
    with pytest.raises(LoaderError, match=r"sample 'n2' is over budget by itself \(50 tokens of 9"):
        list(made)
    made.close()
    assert sorted(chain(*loader("error", budget=60))) == list(range(8))
