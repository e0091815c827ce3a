"""`counterpoise fleet local`: a balancer and workers of this host, as processes of their own."""

import os
import signal
from pathlib import Path

import pytest

from counterpoise.tools.cli import main
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from tests.tools.services.commands import LIMIT_S
from tests.tools.services.test_remote import SAMPLES, SMALL, make, take

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    return Path(ensure_demo_data(folder, samples=SAMPLES, shards=2)).parent


def children(pid):
    """Return the processes below one, as (pid, start): a number may be given again."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            found += [(int(child), stat[19]), *children(child)]
    return found


def is_worker(pid):
    return b"(['worker'" in Path(f"/proc/{pid}/cmdline").read_bytes()


def is_there(pid, start):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return stat[19] == start and stat[0] != "Z"


def test_a_fleet_feeds_a_loop_replaces_a_killed_worker_and_leaves_nothing(processes, root):
    fleet = processes("fleet", "local", "--workers", "2", "--", "--root", str(root))
    address = fleet.wait_for("workers are for ").split()[-1]
    data = TarDataset(str(root / "*.tar"), VisionLanguage(**SMALL), cache=root.parent / "cache")
    expected = take(make(data, timeout=0))
    started = []

    def kill_one(step):
        if step == 1:
            started.extend(children(fleet.process.pid))
            workers = [pid for pid, _ in started if is_worker(pid)]
            os.kill(workers[0], signal.SIGKILL)

    assert take(make(balancer=address), kill_one) == expected
    fleet.wait_for("a worker ended with status -9")
    started += children(fleet.process.pid)
    assert fleet.end() == 0
    assert not [each for each in started if is_there(*each)]
    assert fleet.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["local"], "Missing option '--workers'"),
        (["local", "--workers", "0"], "give 4, or 4:64"),
        (["local", "--workers", "9:4"], "give 4, or 4:64"),
        (["ray", "--workers", "1", "--label", "readers"], "is not NAME=VALUE"),
        (["local", "--workers", "1", "--host", "0.0.0.0"], "nothing authenticates them"),
    ],
)
def test_a_fleet_that_cannot_be_says_why(capfd, words, reason):
    with pytest.raises(SystemExit) as ended:
        main(["fleet", *words])
    assert ended.value.code == 2
    assert reason in capfd.readouterr().err


def test_a_worker_that_can_never_run_ends_the_fleet(processes):
    fleet = processes("fleet", "local", "--workers", "1", "--", "--root", "/nowhere")
    assert fleet.process.wait(LIMIT_S) == 2
    fleet.wait_for("a worker ended with status 2")
