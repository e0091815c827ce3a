"""Ways to damage a balanced loader: each row of framework-calls.md is true."""

import re

import pytest

from tests.docs.test_tables import rows
from tests.frameworks.pool import Pool

TABLE = {
    cells[0]: cells[1] for cells in rows("framework-calls", "what is done to a balanced loader")
}


def test_every_way_is_in_the_table(two: Pool) -> None:
    assert [sorted(names) for names in two.run("damage_cases:names")] == [sorted(TABLE)] * 2
    assert len(TABLE) >= 20


# What others of this folder, or a row beside it, hold too runs with `make test-all`.
OFTEN_DAMAGED = re.compile(
    "DataLoaderShard|with `prepare_accelerate`|second|auto|overfit"
    "|skip_first|BalancedBatchSampler|predict"
)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[] if OFTEN_DAMAGED.search(words) else pytest.mark.long)
        for words in TABLE
    ],
)
def test_each_is_right_or_an_error_that_says_what_is(two: Pool, words: str) -> None:
    expected = TABLE[words]
    for error in two.run("damage_cases:run", words=words):
        if expected == "right":
            assert not error
        else:
            (part,) = re.findall(r"`([^`]+)`", expected)
            assert part in error, error
