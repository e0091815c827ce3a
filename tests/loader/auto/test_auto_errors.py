"""Wrong uses of `balance="auto"` are right, or one line that says what to do."""

import re
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError, RemoteDataset
from tests.loader.auto import auto_data as data
from tests.loader.auto.auto_data import flat, make, numbers


def test_one_sample() -> None:
    assert numbers(make(data.Texts(1))) == [[0]]
    with pytest.raises(ValueError, match="1 samples cannot feed 2 ranks: use fewer ranks"):
        numbers(make(data.Texts(1), ranks=Ranks(virtual=2)))


def test_a_sample_longer_than_all_others_together() -> None:
    loader = make(data.Giant(64), balance=Balance("auto", accumulate=2), ranks=Ranks(virtual=2))
    found = numbers(loader)
    assert sorted(flat(found)) == list(range(64))
    assert {len(each) for each in found} == {8}


def test_fewer_samples_than_microbatches() -> None:
    loader = make(data.Texts(5), balance=Balance("auto", accumulate=4), ranks=Ranks(virtual=2))
    assert [len(each) for each in numbers(loader)] == [1] * 4


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (data.fail, r"collate_fn raised TypeError.*work=\"padded\""),
        (data.die, "the process that read them ended with status 9"),
    ],
)
def test_a_collate_fn_that_fails_on_the_first_samples(
    collate: Any, words: str, workers: int
) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        len(make(data.Texts(40), collate_fn=collate, num_workers=workers))
    assert "\n" not in str(raised.value)
    # what the user says needs no trial
    assert (
        len(make(data.Texts(40), collate_fn=collate, balance=Balance("auto", work="padded"))) == 5
    )


def test_data_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"none of the first 40 samples can be used.*no row"):
        numbers(make(data.Broken(40)))


@pytest.mark.parametrize("cost", [lambda _: {"n": "many"}, lambda _: 5, lambda _: {"n": 1.5}])
def test_costs_that_are_no_numbers(cost: Any) -> None:
    with pytest.raises(ValueError, match=r"allowed are whole numbers|needed is a mapping"):
        numbers(make(data.Texts(40), cost=cost))


def test_a_byte_budget_that_cannot_hold_a_step_is_refused_with_the_figure() -> None:
    with pytest.raises(ValueError, match=r"a step's 64 samples .* give DataLoader\(buffer_bytes="):
        len(make(data.Texts(640), ranks=Ranks(virtual=8), buffer_bytes=10_000))
    assert len(make(data.Probed(640), ranks=Ranks(virtual=8), buffer_bytes=100_000)) == 80


def test_budgets_and_equal_counts_that_cannot_be_met_name_the_smallest_accumulate() -> None:
    balance = Balance("auto", budgets={"tokens": 600})
    with pytest.raises(Exception, match="the smallest accumulate found is 2"):
        numbers(make(data.Texts(64), balance=balance))
    limited = make(data.Texts(64), balance=Balance("auto", budgets={"tokens": 600}), batch_size=2)
    assert len(numbers(limited)) == 32


@pytest.mark.parametrize("counts", ["equal", "free"])
def test_the_batch_size_that_an_error_names_fits_in_the_end(counts: Any) -> None:
    """A larger accumulate would make larger steps, which need one still larger."""
    balance = Balance("auto", budgets={"tokens": 90}, counts=counts)
    tried, why = [8], "set batch_size=8"
    while (found := re.search(r"set batch_size=(\d+)", why)) is not None:
        tried.append(int(found[1]))
        try:
            why = str(len(numbers(make(data.Texts(64), balance=balance, batch_size=tried[-1]))))
        except (ValueError, LoaderError) as error:
            why = str(error)
    assert why == str(64 // tried[-1])
    assert tried[1:] == sorted({*tried}, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": None}, "batch_size is None: give batch_size"),
        (
            {"balance": Balance("auto", budgets={"words": 9})},
            "budgets name words, but samples cost",
        ),
        ({"shuffle": None}, "give shuffle=True"),
    ],
)
def test_what_cannot_be_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        len(make(data.Texts(40), **arguments))


def test_a_remote_dataset_has_the_costs_of_its_workers() -> None:
    loader = DataLoader(
        RemoteDataset("*.tar"), batch_size=4, shuffle=True, ranks=Ranks(virtual=1),
        balance=Balance("auto", layout="padded"), balancer="tcp://127.0.0.1:5555",
    )  # fmt: skip
    assert '"padded":["tokens"]' in loader.state_dict()["auto"]


def test_broken_samples_leave_no_microbatch_empty() -> None:
    balance = Balance("auto", accumulate=2)
    loader = make(
        data.SomeBroken(67), batch_size=2, balance=balance, ranks=Ranks(virtual=2), on_error="skip"
    )
    found = numbers(loader)
    assert all(found)
    assert sorted(flat(found)) == [k for k in sorted(flat(found)) if k % 3]
    assert len(flat(found)) >= 44 - 3
