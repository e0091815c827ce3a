"""One pool of processes for all tests of the dispatch."""

import pytest

from tests.sched.runtime.pool import Pool


@pytest.fixture(scope="session")
def pool():
    made = Pool()
    yield made
    made.close()
