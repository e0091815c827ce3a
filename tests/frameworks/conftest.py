"""Pools of processes for the cases of this folder."""

from collections.abc import Iterator

import pytest

for name in (
    "attached",
    "auto",
    "damage",
    "loss",
    "other_adapters",
    "packed",
    "rows",
    "trainer",
    "training",
):  # test_frameworks.py imports them
    pytest.register_assert_rewrite(f"tests.frameworks.{name}")

from tests.frameworks.pool import Pool  # noqa: E402


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
