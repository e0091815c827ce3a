"""What the pools of the tests run. Imported by name, here and in the pools' processes."""

import os
import signal
from pathlib import Path

from counterpoise.workers.processes.pool import PoolEndedError


def wait(payload, slot):
    signal.pause()


def never_listen(payload, slot):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sign(payload, slot)
    while True:
        signal.pause()


def sign_and_wait(payload, slot):
    sign(payload, slot)
    signal.pause()


def end_well(payload, slot):
    pass


def raise_error(payload, slot):
    raise KeyError("width")


def end_the_pool(payload, slot):
    if slot.index == 1:
        raise PoolEndedError("other data than the others'")
    signal.pause()


def sign(folder, slot):
    """Write a file with this process' number, in one piece."""
    path = Path(folder, f"{slot.index}.{os.getpid()}")
    path.with_suffix(".part").write_text("")
    path.with_suffix(".part").rename(path)
