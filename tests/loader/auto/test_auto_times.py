"""A framework that has the model tells what it takes of tokens and attention, once it is known."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.balancer import time_ns
from counterpoise.loader import Balance, DataLoader
from counterpoise.loader.adapters.trainer import adopt_model
from tests.loader.auto import auto_data as data
from tests.loader.auto.auto_data import numbers

# Attention as dear as the rest at about 26 tokens, so that the plan of these texts is another.
SHAPE = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8,
}  # fmt: skip
LINE = "counterpoise.loader.automatic"


def make(dataset: Any = None, **more: Any) -> DataLoader:
    balance = Balance("auto", accumulate=3, counts="free", **more)
    return DataLoader(
        dataset or data.Texts(96), batch_size=8, shuffle=True, balance=balance,
        ranks=Ranks(virtual=2),
        collate_fn=data.pad,
    )  # fmt: skip


def model(**config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(**config))


def test_the_plan_is_that_of_the_same_times_given_and_the_line_says_whose_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LINE)
    loader, given = make(), make(work=time_ns(SHAPE))
    adopt_model(loader, model(**SHAPE), normalises=False)
    found = numbers(loader)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "tokens padded; times computed from SimpleNamespace; step 0." in line
    assert found == numbers(given)
    assert found != numbers(make())


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 8, "num_hidden_layers": 2},  # no attention: some other kind of model
        {"num_attention_heads": 2},
        {},
    ],
)
def test_of_a_configuration_that_is_not_known_nothing_is_computed(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LINE)
    loader = make()
    adopt_model(loader, model(**config), normalises=False)
    assert numbers(loader) == numbers(make())
    assert not any("times" in record.getMessage() for record in caplog.records)


def test_times_that_the_user_has_given_stay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LINE)
    loader = make(work={"tokens": 5})
    adopt_model(loader, model(**SHAPE), normalises=False)
    assert numbers(loader) == numbers(make(work={"tokens": 5}))
    assert not any("times computed" in record.getMessage() for record in caplog.records)


def test_costs_that_the_model_has_no_time_for_are_not_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LINE)
    table = {
        "tokens": [1 + k * 7 % 40 for k in range(96)], "tiles": [1 + k * 5 % 9 for k in range(96)],
    }  # fmt: skip
    balance = Balance("auto", accumulate=3, work="padded")
    loaders = [
        DataLoader(
            data.Texts(96), batch_size=8, shuffle=True, balance=balance, ranks=Ranks(virtual=2),
            collate_fn=data.pad, cost=table,
        )
        for _ in range(2)
    ]  # fmt: skip
    adopt_model(loaders[0], model(**SHAPE), normalises=False)
    assert numbers(loaders[0]) == numbers(loaders[1])
    assert not any("times computed" in record.getMessage() for record in caplog.records)
