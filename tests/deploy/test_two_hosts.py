"""Balancer and trainer on one host, workers on another, over a wire with delay, loss and a cut.

Hosts are network namespaces, and the wire is this process: it reads frames of a TAP device in the
one, and writes them to that in the other, later or not at all. (The kernel here has no netem.)
"""

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from tests.forking.popen import COMMAND
from tests.tools.services.test_remote import SAMPLES, SMALL, make, take

TUN = Path("/dev/net/tun")
pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0 or not TUN.exists(), reason="needs root and TAP devices"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
DELAY_S, LOSS = 0.01, 0.02
CUT_S = 6.0
HOSTS = {"cpA": "10.77.0.1", "cpB": "10.77.0.2"}
TRAIN = """
import json, os, sys
from pathlib import Path
from tests.tools.services.test_remote import make, take

out = Path(sys.argv[2])
loader = make(balancer=sys.argv[1], timeout=120)
found = take(loader, lambda step: out.with_name("step").write_text(f"{step}"))
out.write_text(json.dumps(found))
"""


class Wire:
    """Carries frames between two devices, in a thread."""

    def __init__(self, names, seed):
        self.is_cut, self.lost, self.carried = False, 0, 0
        self._random, self._ends = random.Random(seed), threading.Event()
        self._devices = [os.open(TUN, os.O_RDWR | os.O_NONBLOCK) for _ in names]
        for device, name in zip(self._devices, names, strict=True):
            request = struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI)
            fcntl.ioctl(device, TUNSETIFF, request)
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self):
        a, b = self._devices
        late, count = [], 0
        while not self._ends.is_set():
            for device in select.select([a, b], [], [], 0.002)[0]:
                with contextlib.suppress(OSError):
                    frame = os.read(device, 65536)
                    if self.is_cut or self._random.random() < LOSS:
                        self.lost += 1
                        continue
                    count += 1
                    heapq.heappush(late, (time.monotonic() + DELAY_S, count, a + b - device, frame))
            while late and late[0][0] <= time.monotonic():
                *_, device, frame = heapq.heappop(late)
                with contextlib.suppress(OSError):
                    os.write(device, frame)
                    self.carried += 1

    def close(self):
        self._ends.set()
        self._thread.join()
        for device in self._devices:
            os.close(device)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def wire():
    made = Wire(["cptapA", "cptapB"], seed=1)
    try:
        for (host, address), device in zip(HOSTS.items(), ("cptapA", "cptapB"), strict=True):
            ip("netns", "add", host)
            ip("link", "set", device, "netns", host)
            ip("-n", host, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", host, "link", "set", device, "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield made
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False)
        made.close()


@pytest.fixture
def on():
    """Start commands on a host; all are killed at the end."""
    started = []

    def start(host, *words):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen(["ip", "netns", "exec", host, *words], env=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_the_batches_are_the_same_over_a_bad_wire_that_is_cut(wire, on, tmp_path):
    root = Path(ensure_demo_data(tmp_path, samples=SAMPLES, shards=2)).parent
    keys, out = tmp_path / "keys", tmp_path / "found.json"
    subprocess.run([COMMAND, "keygen", str(keys)], check=True)
    address, own = f"tcp://{HOSTS['cpA']}:5555", ["--keys", str(keys / "worker")]
    words = ["balancer", "--listen", address, "--keys", str(keys / "balancer")]
    on("cpA", COMMAND, *words, "--heartbeat-timeout", "3")
    for _ in range(2):
        on("cpB", COMMAND, "worker", address, "--root", str(root), *own)
    script = TRAIN.replace("make(", f"make(keys={str(keys / 'trainer')!r}, ")
    trainer = on("cpA", sys.executable, "-c", script, address, str(out))
    step, pause = tmp_path / "step", threading.Event()
    while not step.exists() or int(step.read_text() or 0) < 1:
        assert trainer.poll() is None
        pause.wait(0.01)
    wire.is_cut = True
    pause.wait(CUT_S)  # longer than the balancer waits for a heartbeat
    wire.is_cut = False
    assert trainer.wait(120) == 0
    data = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=tmp_path / "cache")
    expected = take(make(data, timeout=0))
    assert [tuple(each) for each in json.loads(out.read_text())] == [
        (number, rank, list(names), digest) for number, rank, names, digest in expected
    ]
    assert wire.lost > 10
    assert wire.carried > 100
