"""A served balancer under large frames; `make fuzz TARGET=messages` sends it hostile messages."""

import random
import time

import pytest

from counterpoise.balancer.job.messages import SentFrames
from counterpoise.balancer.transport.wire import encode
from tests.security import raw_zmtp
from tests.security.served import ServedJob, multipart, try_once


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    served = ServedJob(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


LARGE = 100 << 20
USELESS_ITEM = encode(SentFrames(1, 1))


@pytest.mark.parametrize("what", ["a header", "a payload", "half a frame", "many frames"])
def test_a_large_frame_leaves_no_memory_behind(job, what):
    before = job.resident_bytes()
    frame = raw_zmtp.frame(bytes(LARGE))
    sent = {
        "a header": frame,
        "a payload": multipart([USELESS_ITEM, bytes(LARGE)]),
        "half a frame": frame[: LARGE // 2],
        "many frames": raw_zmtp.frame(bytes(1 << 20), more=True) * 100,
    }
    peer = raw_zmtp.connect(job.address, what.encode())
    peer.sendall(sent[what])
    peer.close()
    until = time.monotonic() + 20
    while job.resident_bytes() > before + (16 << 20):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert job.run() == job.digest


def test_a_balancer_that_has_ended_is_seen(job):
    """The last test of the module: what the others would not see would be worth nothing."""
    job.process.kill()
    job.process.wait()
    job.digest = "none is possible"
    is_well, found = try_once(job, random.Random(9), messages=0)
    assert not is_well
    assert found.startswith("the balancer ended with -9")
