"""While the trainer sleeps, the processes' memory stays within the byte budget and a margin.

What counts is the proportional share of private and of shared memory (Pss_Anon and Pss_Shmem of
/proc/PID/smaps_rollup), summed over all processes; files that are mapped (libraries) are left out,
since who else has them open changes their share.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers.daemon.job_worker import REST_S
from tests.loader.processes.memory_trainer import BUDGET_BYTES, COUNT, MIB

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
COMMAND = str(Path(sys.executable).with_name("counterpoise"))
MARGIN_BYTES = 64 * MIB
LIMIT_S = 60.0
# Memory is stable when so many looks in a row, so far apart, differ by so little: processes give
# back what they have freed after half a second of rest, which they notice within another, and
# workers what they decode with after ten. A look costs some ms of CPU for every process.
LOOKS, LOOK_S, STABLE_BYTES = 10, 0.25, 1 * MIB
LONG_LOOK_S = (REST_S + 1) / LOOKS


def children():
    """Return the children of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(path.parent.name))
    return found


def tree(roots):
    below, found = children(), list(roots)
    for pid in found:
        found += below.get(pid, [])
    return found


def used_bytes(roots, what=("Pss_Anon", "Pss_Shmem")):
    total = 0
    for pid in tree(roots):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = dict(line.replace(" kB", "").split(":") for line in lines)
        total += 1024 * sum(int(sizes[each]) for each in what)
    return total


def stable_bytes(roots, look_s=LOOK_S):
    """Wait until the memory in use changes no more; return it."""
    deadline, bell, looks = time.monotonic() + LIMIT_S, threading.Event(), []
    while len(looks) < LOOKS or max(looks) - min(looks) > STABLE_BYTES:
        assert time.monotonic() < deadline, looks
        looks = [*looks[-LOOKS + 1 :], used_bytes(roots)]
        bell.wait(look_s)
    return max(looks)


@pytest.fixture
def start():
    """Start processes; all of them are killed at the end."""
    started = []

    def start(*words):
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(HERE)},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def growth(trainer, others=(), look_s=LOOK_S):
    """Return by how much memory grows from an open loader to a trainer that sleeps.

    Shared memory counts in full: idle workers keep what they lend.
    """
    roots = [trainer.pid, *(process.pid for process in others)]
    assert trainer.stdout.readline() == "open\n", trainer.stderr.read()
    stable_bytes(roots, look_s)
    idle = used_bytes(roots, ["Pss_Anon"])
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "asleep\n", trainer.stderr.read()
    return stable_bytes(roots) - idle


def assert_within_the_budget(grown, lent_bytes=0):
    print(f"{grown / MIB:.0f} MiB over idle, budget {BUDGET_BYTES / MIB:.0f} MiB")
    assert BUDGET_BYTES / 2 < grown <= BUDGET_BYTES + lent_bytes + MARGIN_BYTES


def test_with_local_workers(start):
    grown = growth(start(sys.executable, str(HERE / "memory_trainer.py"), "here"))
    # Lent memory is used again a segment at a time: what finds no room meanwhile goes inline.
    assert_within_the_budget(grown, lent_bytes=BUDGET_BYTES // 2)


@pytest.mark.long
def test_with_a_balancer_and_workers_of_their_own(start, tmp_path):
    shards = Path(ensure_demo_data(tmp_path, samples=COUNT, shards=2)).parent
    balancer = start(COMMAND, "balancer", "--listen", "tcp://127.0.0.1:0")
    line = balancer.stderr.readline()
    address = line.partition("listening on ")[2].partition(";")[0]
    words = ["--root", str(shards), "--allow", "memory_trainer:Inflate"]
    workers = [
        start(COMMAND, "worker", address, *words, "--cache", str(tmp_path / "cache"))
        for _ in range(2)
    ]
    trainer = start(sys.executable, str(HERE / "memory_trainer.py"), address)
    assert_within_the_budget(growth(trainer, [balancer, *workers], LONG_LOOK_S))
