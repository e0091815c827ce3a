"""One pool of processes for all tests of the runtime."""

import pytest
import torch

from tests.sched.runtime.pool import Pool


@pytest.fixture(autouse=True)
def _one_thread():
    """Keep tensors of a few bytes on one thread; waking others costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pool():
    made = Pool()
    yield made
    made.close()
