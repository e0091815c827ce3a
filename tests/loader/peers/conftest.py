"""Ranks of two pretended hosts."""

from collections.abc import Iterator

import pytest

from tests.loader.peers.memory_store import Job


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job("aabb")
    yield made
    made.close()
