"""Losses under the real libraries: packed samples apart, infos with their batches, divided once."""

from pathlib import Path

import numpy as np
import pytest

from counterpoise.loader.collate.equivalence import PACKED
from tests.frameworks.pool import Pool

CASES = "loss_cases"


def test_check_equivalence_names_attention_across_borders(one: Pool) -> None:
    assert one.run(f"{CASES}:checked", knows_borders=True) == [(True, ())]
    ((is_same, causes),) = one.run(f"{CASES}:checked", knows_borders=False)
    assert not is_same
    assert causes == (PACKED,)


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.long)])
def test_ranks_that_count_in_their_batches_all_know_the_same_total(two: Pool, named: bool) -> None:
    ranks = two.run(f"{CASES}:counted_in_batches", named=named)
    for step in range(4):
        own = [[each for each in rank if each[0] == step] for rank in ranks]
        total = sum(each[1] for rank in own for each in rank)
        for rank in own:
            assert len(rank) == 3
            counted = sum(each[1] for each in rank)
            assert [each[2:] for each in rank] == [(each[1], counted, total) for each in rank]


def test_infos_stay_with_their_batches_where_lightning_fetches_ahead(one: Pool) -> None:
    (matching,) = one.run(f"{CASES}:lightning_ahead")
    assert len(matching) > 8
    assert all(matching)


def test_lightning_resumes_whole_steps_of_any_number_of_microbatches(
    one: Pool, tmp_path: Path
) -> None:
    ((steps, ours, theirs),) = one.run(f"{CASES}:lightning_resumed", folder=str(tmp_path), at=2)
    whole, first, second = steps
    assert [number for number, _ in whole] == [0, 1, 2, 3]
    assert first + second == whole
    for one_of_ours, one_of_theirs in zip(ours, theirs, strict=True):
        assert np.array_equal(one_of_ours, one_of_theirs)
