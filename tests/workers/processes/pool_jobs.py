"""What the pools of the tests run. Imported by name, here and in the pools' processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from counterpoise.workers.processes.pool_job import PoolEndedError


def wait(payload, slot):
    signal.pause()


def never_listen(payload, slot):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(payload, slot, "deaf")
    while True:
        signal.pause()


def die_once(payload, slot):
    if slot.index == 1 and slot.incarnation == 0:
        os._exit(3)
    signal.pause()


def raise_error(payload, slot):
    raise KeyError("width")


def end_the_pool(payload, slot):
    if slot.index == 1:
        Path(payload, "go").read_text()  # a named pipe
        raise PoolEndedError("other data than the others'")
    signal.pause()


def start_a_child(payload, slot):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    write(payload, slot, str(child.pid))
    signal.pause()


def write_environment(payload, slot):
    write(payload, slot, os.environ.get("COUNTERPOISE_TEST_WORD", "") + "|" + str(Path.cwd()))


def write_sums(payload, slot):
    folder, array, tensor, _ = payload
    sums = f"{array.sum()} {tensor.sum()} {tuple(tensor.shape)} {array.flags.writeable}"
    array[:] = slot.index
    write(folder, slot, sums)


def sign_in(payload, slot):
    payload["board"][slot.index] = payload["tail"][slot.index] = 7 + slot.index


def use_inherited(payload, slot):
    folder, file, writing = payload
    file.seek(0)
    try:
        done = f"{os.write(writing, b'x')} written"
    except OSError as error:
        done = str(error.strerror)
    write(folder, slot, f"{file.read()}, {done}")
    signal.pause()


def write(folder, slot, text):
    """Write a file in one piece."""
    path = Path(folder, f"{slot.index}.{slot.incarnation}")
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)
