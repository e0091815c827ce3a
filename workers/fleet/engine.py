"""The interface of engines, which start workers on a cluster and end them.

An engine runs the command `counterpoise worker` somewhere, and knows nothing of samples: these go
from workers to trainers, past it.
"""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...balancer.transport.finding import find_address
from ..processes.clean_interpreter import clean_command

_WATCH = f"{__package__.rpartition('.')[0]}.processes.parent_watch"
_DRAIN = (
    "import os, signal as s; s.signal(s.SIGUSR1, lambda *_: os.kill(os.getpid(), s.SIGTERM)); "
    "from importlib import metadata"
)
# By the name under which it is installed: what is below commands does not know theirs.
_COMMAND = "metadata.entry_points(group='console_scripts')['counterpoise'].load()"
# A worker ends with one of these where another would end so, too: its command line is wrong, or its
# data are.
HOPELESS = (2, 4)
STOP_S = 30.0
# Of temporary folders: one that begins as those of sockets do (loader/connect/balancer_process.py)
# would be taken for one that was left.
FOLDER = "fleet-counterpoise-"
LOOK_S = 0.05


class Engine(Protocol):
    """Starts and ends workers. hint: where a worker waits that was started and has not come."""

    hint: str

    def start(self, workers: int) -> None:
        """Have so many workers at least; those that were lost are started again.

        RuntimeError where that is useless.
        """

    def drain(self, workers: int) -> None:
        """Let all workers but so many finish what they have, and end."""

    def stop(self) -> None:
        """Drain all workers, and wait for them."""


def product_command(words: Sequence[str]) -> list[str]:
    """Return the command line of `counterpoise WORDS`, which ends with who starts it.

    It takes SIGUSR1 for a SIGTERM: srun passes on the one, and kills at the other.
    """
    return clean_command(_WATCH, f"m.end_with_parent(); {_DRAIN}; {_COMMAND}({list(words)!r})")


class BalancerProcess:
    """A balancer on this host, for those who were given no address of one."""

    def __init__(self, host: str, words: Sequence[str] = ()) -> None:
        """Start it; RuntimeError if it does not serve."""
        with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
            file = Path(folder, "address")
            own = ["--listen", f"tcp://{host}:0", "--address-file", str(file)]
            command = product_command(["balancer", *own, *words])
            self._process = subprocess.Popen(command, start_new_session=True)
            while not (found := find_address(file.as_uri())):
                self.check()
                time.sleep(LOOK_S)
        self.address = found

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the balancer ended with status {code}: see what it logged")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        end(self._process, STOP_S)


def end(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Wait for a process that was asked to end; kill it after `timeout_s`."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
