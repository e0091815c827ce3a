"""What our processes keep of freed memory: nothing, when it is time to give it back.

What is measured has a process of its own: what the C library was told cannot be taken back.
"""

import subprocess
import sys

import pytest

from counterpoise.balancer.server import malloc as memory

MIB = 1 << 20
# A second thread takes in 32 payloads of 1 MiB; all are freed.
SCRIPT = """
import threading
from pathlib import Path
from counterpoise.balancer.server.malloc import keep_freed_memory, release_freed_memory

def used():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = dict(line.replace(" kB", "").split(":") for line in lines)
    return 1024 * int(sizes["Pss_Anon"])

# what the imports freed must not be used for the payloads
release_freed_memory()
keeps = keep_freed_memory()
payloads, before = [], used()
taken, free, freed = threading.Event(), threading.Event(), threading.Event()

def take():
    payloads.extend(bytearray(1 << 20) for _ in range(32))
    taken.set()
    free.wait()
    payloads.clear()
    freed.set()

threading.Thread(target=take, daemon=True).start()
taken.wait()
full = used()
free.set()
freed.wait()
kept = used()
release_freed_memory()
print(int(keeps), full - before, kept - before, used() - before)
"""


@pytest.fixture(scope="module")
def figures():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    keeps, *used = map(int, done.stdout.split())
    if not keeps:
        pytest.skip("the C library is not glibc")
    return used


def test_freed_memory_is_kept_for_the_next_payload(figures):
    full, kept, _ = figures
    # Of 32 MiB: a few pages that something else gave back meanwhile are counted against them.
    assert full >= 31 * MIB
    assert kept >= 31 * MIB


def test_all_of_it_is_given_back_whichever_thread_took_it(figures):
    assert figures[2] < 2 * MIB


def test_it_is_given_back_as_long_as_the_process_rests(monkeypatch):
    now = 0.0
    released: list[float] = []
    monkeypatch.setattr(memory, "release_freed_memory", lambda: released.append(now))
    trimmer = memory.IdleTrimmer()
    for now in (0.0, 100.0):
        trimmer.trim_if_idle(now)
    assert not released
    for now in (100.0, 100.25, 100.5):
        trimmer.note_payload(now)
        trimmer.trim_if_idle(now)
    for now in (100.75, 101.0, 101.25, 101.5, 1000.0):
        trimmer.trim_if_idle(now)
    assert released == [101.0, 101.5, 1000.0]


def test_what_was_sent_is_given_back_soon_whatever_came_after_it(monkeypatch):
    now = 0.0
    released: list[float] = []
    monkeypatch.setattr(memory, "release_freed_memory", lambda: released.append(now))
    trimmer = memory.IdleTrimmer()
    for now, idle_s in ((0.0, 10.0), (1.0, 0.5), (1.25, 10.0)):
        trimmer.note_payload(now, idle_s)
    for now in (1.5, 1.75, 2.0):
        trimmer.trim_if_idle(now)
    assert released == [1.75]
    trimmer.note_payload(2.0, 10.0)
    for now in (11.75, 12.0, 12.5, 22.0):
        trimmer.trim_if_idle(now)
    assert released == [1.75, 12.0, 22.0]
