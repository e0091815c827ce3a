"""A balancer and workers as processes of this host: each is the command `counterpoise` itself.

They know nothing of samples: these go from workers to trainers, past whoever started them.
"""

import logging
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...balancer.transport.finding import find_address
from ..processes.clean_interpreter import clean_command

logger = logging.getLogger(__name__)

_WATCH = f"{__package__.rpartition('.')[0]}.processes.parent_watch"
# By the name under which it is installed: what is below commands does not know theirs.
_COMMAND = "metadata.entry_points(group='console_scripts')['counterpoise'].load()"
# A worker ends with one of these where another would end so, too: its command line is wrong, or its
# data are.
HOPELESS = (2, 4)
STOP_S = 30.0
# Of temporary folders: one that begins as those of sockets do (loader/remote/balancer_process.py)
# would be taken for one that was left.
FOLDER = "fleet-counterpoise-"
LOOK_S = 0.05


def product_command(words: Sequence[str]) -> list[str]:
    """Return the command line of `counterpoise WORDS`, which ends with who starts it."""
    call = f"m.end_with_parent(); from importlib import metadata; {_COMMAND}({list(words)!r})"
    return clean_command(_WATCH, call)


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
        _wait_for(self._process)


class Processes:
    """An engine: workers as processes of this host."""

    hint = "see what they logged"

    def __init__(self, address: str, words: Sequence[str]) -> None:
        """address: the balancer's; words: options of `counterpoise worker`."""
        self._command = product_command(["worker", address, *words])
        self._running: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        """Start workers until there are so many."""
        self._leaving = [each for each in self._leaving if each.poll() is None]
        for each in [each for each in self._running if each.poll() is not None]:
            self._running.remove(each)
            if each.returncode in HOPELESS:
                raise RuntimeError(f"a worker ended with status {each.returncode}, see its log")
            logger.warning("a worker ended with status %d", each.returncode)
        while len(self._running) < workers:
            # A session of its own: a terminal's Ctrl-C is for who drains the workers.
            self._running.append(subprocess.Popen(self._command, start_new_session=True))

    def drain(self, workers: int) -> None:
        """Ask those that came last to end."""
        for each in self._running[workers:]:
            each.terminate()
            self._leaving.append(each)
        del self._running[workers:]

    def stop(self) -> None:
        """End the workers."""
        self.drain(0)
        for each in self._leaving:
            _wait_for(each)


def _wait_for(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a process that was asked to end; kill it after STOP_S."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
