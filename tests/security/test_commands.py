"""keygen, balancer and worker as commands: a keyed job from end to end."""

import json
import signal
from pathlib import Path

import pytest
import zmq

from counterpoise.balancer.protocol.messages import ListJobs
from counterpoise.balancer.transport.sockets import connect, send
from counterpoise.tools.cli import group
from counterpoise.tools.demo.data import ensure_demo_data
from tests.security.key_party import LIMIT_S, SAMPLES, keygen, make, samples
from tests.tools.services.commands import Process

pytestmark = pytest.mark.slow


def doctor(capfd, address, keys):
    """What the doctor finds out about a keyed balancer."""
    capfd.readouterr()
    group.main(
        ["doctor", address, "--keys", str(keys), "--timeout", str(LIMIT_S), "--json"],
        standalone_mode=False,
    )
    return json.loads(capfd.readouterr().out.splitlines()[-1])["job"]


def test_a_keyed_job_from_end_to_end(tmp_path, capfd):
    root = Path(ensure_demo_data(tmp_path / "root", samples=SAMPLES, shards=1)).parent
    keygen(tmp_path / "keys")
    balancer = Process(
        "balancer", "--listen", "tcp://127.0.0.1:0", "--keys", f"{tmp_path}/keys/balancer"
    )
    address = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    assert doctor(capfd, address, tmp_path / "keys" / "trainer")["refused"] == 0
    with zmq.Context() as context, connect(context, address, b"nobody") as stranger:
        send(stranger, ListJobs())
        balancer.wait_for("refused: a peer has no key")
        worker = Process(
            "worker", address, "--root", str(root), "--keys", f"{tmp_path}/keys/worker"
        )
        assert len(samples(make(address, tmp_path / "keys" / "trainer"))) == SAMPLES
        assert stranger.poll(0) == 0
        report = doctor(capfd, address, tmp_path / "keys" / "trainer")
        assert report["refused"] >= 1
        assert report["lost"] == 0
        (tmp_path / "keys" / "balancer" / "allowed" / "worker.pub").unlink()
        worker.wait_for("this key is not allowed (any more)")
        assert worker.process.wait(LIMIT_S) == 2
    assert balancer.end(signal.SIGTERM) == 0
    balancer.wait_for("messages and peers in all")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["balancer", "--keys", "."], "has no secret.key: make keys with counterpoise keygen"),
        (["worker", "tcp://127.0.0.1:1", "--root", ".", "--keys", "."], "has no secret.key"),
    ],
)
def test_missing_keys_are_one_line(words, reason):
    command = Process(*words)
    command.wait_for(reason)
    assert command.process.wait(30) == 2
    assert len(command.lines) == 1
