"""A served balancer under hostile messages: an honest job beside them gets what it always gets.

`make fuzz TARGET=messages` does it a thousand times.
"""

import random

import pytest

from tests.security.served import ServedJob, try_once


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    served = ServedJob(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


@pytest.mark.parametrize("seed", range(3))
def test_an_honest_job_is_not_changed(job, seed):
    is_well, found = try_once(job, random.Random(seed), messages=400)
    assert is_well, found
    assert found.startswith("400 messages")


def test_a_balancer_that_has_ended_is_seen(job):
    """The last test of the module: what the others would not see would be worth nothing."""
    job.process.kill()
    job.process.wait()
    job.digest = "none is possible"
    is_well, found = try_once(job, random.Random(9), messages=0)
    assert not is_well
    assert found.startswith("the balancer ended with -9")
