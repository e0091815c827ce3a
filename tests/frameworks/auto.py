"""`balance="auto"` on two ranks: what is found is the same for both, and no rank hangs."""

import json
from pathlib import Path
from typing import Any

import pytest

from counterpoise import Ranks
from counterpoise.loader import Balance
from tests.frameworks.pool import Pool


@pytest.fixture(scope="module")
def ranks(two: Pool) -> Any:
    """What two ranks take, their ledgers, and the length."""
    return two.run("auto_cases:together")


def test_ranks_share_what_one_of_them_has_found(one: Pool, ranks: Any) -> None:
    ((alone, ledger, length),) = one.run("auto_cases:together", ranks=Ranks(virtual=2))
    assert sorted(ranks[0][0] + ranks[1][0]) == sorted(alone)
    assert [each[1]["auto"] for each in ranks] == [ledger["auto"]] * 2
    assert ranks[0][1] == ranks[1][1] == ledger
    assert json.loads(ledger["auto"])["padded"] == ["tokens"]
    assert length == len(alone)
    assert ranks[0][2] == len(ranks[0][0]) == len(alone) // 2


@pytest.mark.long
def test_a_resume_inside_a_step_reads_no_first_samples(two: Pool, ranks: Any) -> None:
    for (first, rest), (taken, _, _) in zip(two.run("auto_cases:resumed"), ranks, strict=True):
        assert first + rest == [each[3] for each in taken]


@pytest.mark.parametrize(
    ("kind", "words"), [("raises", "collate_fn raised TypeError"), ("dies", "ended with status 7")]
)
def test_a_collate_fn_that_cannot_be_tried_is_one_error_on_each_rank(
    two: Pool, kind: str, words: str
) -> None:
    found = sorted(two.run("auto_cases:failing", kind=kind))
    assert [text.partition(":")[0] for text in found] == ["LoaderError", "ValueError"]
    assert all(words in text and "\n" not in text for text in found)
    assert "could not find what samples cost" in found[0]


def test_a_byte_budget_too_small_for_a_step_is_the_same_error_on_each_rank(two: Pool) -> None:
    found = two.run("auto_cases:small_budget")
    assert all("give DataLoader(buffer_bytes=" in text for text in found)


@pytest.mark.parametrize("balance", [Balance("auto", accumulate=2), Balance(accumulate=2)])
def test_ranks_wait_once_a_step_where_accelerate_says_so(
    one: Pool, two: Pool, tmp_path: Path, balance: Balance
) -> None:
    found = two.run("auto_cases:waits", folder=str(tmp_path), balance=balance)
    assert found[0] == found[1]
    once = {name for name, waits in found[0].items() if waits == "step"}
    assert once == {"prepare", "prepare_accelerate", "trainer"}
    alone = one.run("auto_cases:waits", folder=str(tmp_path), balance=balance)
    assert set(alone[0].values()) == {"microbatch"}


@pytest.mark.parametrize("is_trl", [False, True])
def test_trainers_own_sampling_by_length_or_ours(one: Pool, tmp_path: Path, is_trl: bool) -> None:
    (error,) = one.run("trainer_cases:sampling_by_length", folder=str(tmp_path), is_trl=is_trl)
    assert "one of the two has to go" in error
