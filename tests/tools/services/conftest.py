"""Starts commands for the tests of balancer and worker."""

import pytest

from tests.tools.services.commands import Process


@pytest.fixture(scope="module")
def processes():
    """Start commands; all of them are killed at the end."""
    started = []

    def start(*words, **how):
        started.append(Process(*words, **how))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
