"""A sample over budget by itself is told: logged with its figures, in StepInfo, or an error."""

import json
import logging
from itertools import chain
from typing import Any

import pytest
from click.testing import CliRunner

from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.tools.doctor.command import command as doctor

TOKENS = [3, 4, 50, 2, 5, 60, 1, 2]


def loader(oversize: Any, workers: int = 0, budget: int = 9) -> DataLoader:
    balance = Balance(
        budgets={"tokens": budget}, samples_per_step=4, accumulate="auto", oversize=oversize
    )
    return DataLoader(
        list(range(8)), balance=balance, shuffle=False, cost={"tokens": TOKENS}, collate_fn=list,
        num_workers=workers, key="n{}".format,
    )  # fmt: skip


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


@pytest.mark.usefixtures("through_balancer")
def test_doctor_tells_how_many_there_are() -> None:
    made = loader("alone", workers=1)
    batches = iter(made)
    while made.step_info is None or made.step_info.step < 1:  # then both steps are planned
        next(batches)
    assert made._balanced is not None
    connection: Any = made._balanced.open()
    result = CliRunner().invoke(doctor, [connection.endpoint, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    report = json.loads(result.stdout.splitlines()[-1])
    made.close()
    assert report["job"]["over_budget"] == 2
    assert "2 samples of this run, in microbatches of their own" in result.stdout


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
