"""A pool goes on after a case that leaves its processes in a collective."""

import pytest

from tests.frameworks.pool import Pool, RankError


@pytest.mark.long
@pytest.mark.parametrize(
    ("dies", "words"), [(False, "ValueError: this rank cannot"), (True, "rank 0 ended in")]
)
def test_the_next_case_has_new_processes(dies: bool, words: str) -> None:
    pool = Pool(2)
    try:
        with pytest.raises(RankError, match=words):
            pool.run("pool_cases:failing", dies=dies)
        assert pool.run("pool_cases:added_up") == [3, 3]
    finally:
        pool.close()
