"""Pools of processes for the cases of this folder."""

from collections.abc import Iterator

import pytest

from tests.frameworks.pool import Pool


@pytest.fixture(scope="session")
def one() -> Iterator[Pool]:
    """One process, without a process group."""
    pool = Pool(1)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def two() -> Iterator[Pool]:
    """Two ranks."""
    pool = Pool(2)
    yield pool
    pool.close()
