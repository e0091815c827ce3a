"""A balancer that comes back at another address under its name: peers look the name up again.

The name is in a hosts file of the processes' own, in mount namespaces.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from tests.deploy.test_two_hosts import TRAIN
from tests.forking.popen import COMMAND
from tests.held_port import held_port
from tests.tools.services.test_remote import SAMPLES, SMALL, make, take

NAME = "balancer.test"
INSIDE = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


def may_mount():
    try:
        words = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not may_mount(), reason="needs mount namespaces"),
]


class Hosts:
    """A hosts file in which the balancer's name has an address, and processes that read it."""

    def __init__(self, path):
        self.path, self.started = path, []
        path.write_text(f"127.0.0.1 localhost\n127.0.0.1 {NAME}\n")

    def move(self, address):
        """Let the name have another address of as many characters, in the same file."""
        with self.path.open("r+") as file:
            file.write(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def start(self, *words):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [*INSIDE, str(self.path), *words]
        self.started.append(subprocess.Popen(command, env=environment))
        return self.started[-1]


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path / "hosts")
    yield made
    for each in made.started:
        each.kill()
        each.wait()


@pytest.fixture
def port():
    with held_port() as held:
        yield held


def test_the_batches_are_the_same_where_the_balancer_s_name_has_moved(hosts, port, tmp_path):
    root, out = Path(ensure_demo_data(tmp_path, samples=SAMPLES, shards=2)).parent, tmp_path / "out"
    step, pause = tmp_path / "step", threading.Event()
    address = f"tcp://{NAME}:{port}"
    for _ in range(2):
        hosts.start(COMMAND, "worker", address, "--root", str(root))
    first = hosts.start(COMMAND, "balancer", "--listen", f"tcp://127.0.0.1:{port}")
    trainer = hosts.start(sys.executable, "-c", TRAIN, address, str(out))
    while not step.exists() or int(step.read_text() or 0) < 1:
        assert trainer.poll() is None
        pause.wait(0.01)
    first.kill()
    first.wait()
    hosts.move("127.0.0.2")
    hosts.start(COMMAND, "balancer", "--listen", f"tcp://127.0.0.2:{port}")
    assert trainer.wait(120) == 0
    data = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=tmp_path / "cache")
    expected = take(make(data, timeout=0))
    assert json.loads(out.read_text()) == [
        [number, rank, list(names), digest] for number, rank, names, digest in expected
    ]
