"""Several jobs at one balancer, and a balancer that moves: commands as processes of their own."""

import json
import threading
from pathlib import Path

import pytest

from counterpoise import Balancer
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.test_remote import SAMPLES, make, take

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    return Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent


def logged(process, **fields):
    """Return the lines of a JSON log with these fields."""
    lines = [json.loads(line) for line in process.lines]
    return [line for line in lines if fields.items() <= line.items()]


def test_a_balancer_that_comes_back_elsewhere_is_found_and_the_batches_are_the_same(
    processes, root, tmp_path
):
    """Another port, another name of the host: the file says where, and nobody is told."""
    file = tmp_path / "shared" / "balancer.addr"
    file.parent.mkdir()
    address = f"file://{file}"
    worker = processes("worker", address, "--root", str(root), "--log-format", "json")
    found = []
    trainer = threading.Thread(
        target=lambda: found.extend(take(make(balancer=Balancer(address, job="a"))))
    )
    trainer.start()  # before there is a balancer
    options = "--insecure", "--address-file", str(file), "--log-format", "json"
    first = processes("balancer", "--listen", "tcp://127.0.0.1:0", *options)
    first.wait_for("listening on")
    trainer.join(60)
    want = found.copy()
    assert len(want) > 4
    found.clear()
    loader = make(balancer=Balancer(address, job="a"))
    ended = []

    def move(step):
        if step == 1 and not ended:
            first.process.kill()
            first.process.wait()
            second = processes("balancer", "--listen", "tcp://0.0.0.0:0", *options)
            second.wait_for("listening on")
            ended.append(second)

    before = file.read_text()
    assert take(loader, move) == want
    assert file.read_text() != before
    assert [line["event"] for line in logged(worker, job="a")].count("job") >= 2
    joined = [line["worker"] for line in logged(ended[0], event="join") if "worker" in line]
    assert len(joined) == 1  # nothing twice
    assert logged(ended[0], event="epoch", job="a")


@pytest.mark.parametrize("how", [[], ["--supervise"]], ids=["alone", "supervised"])
def test_a_balancer_that_is_told_to_stop_removes_its_address_file(processes, tmp_path, how):
    file = tmp_path / "balancer.addr"
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0", "--address-file", file, *how)
    balancer.wait_for("says tcp://")
    assert file.read_text().startswith("tcp://127.0.0.1:")
    assert balancer.end() == 0
    assert not file.exists()


def test_an_address_file_that_another_balancer_has_written_stays(processes, tmp_path):
    file = tmp_path / "balancer.addr"
    words = "balancer", "--listen", "tcp://127.0.0.1:0", "--address-file", file
    first, second = processes(*words), processes(*words)
    for each in (first, second):
        each.wait_for("says tcp://")
    file.write_text(second.wait_for("says tcp://").split()[-1])
    assert first.end() == 0
    assert file.exists()
    assert second.end() == 0
    assert not file.exists()
