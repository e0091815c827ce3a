"""One pool of processes for all tests of the runtime."""

import socket

import pytest

from tests.sched.runtime.pool import Pool


@pytest.fixture(scope="session")
def pool():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Pool(port)
    yield made
    made.close()
