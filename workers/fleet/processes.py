"""A balancer and workers as processes of this host: each is the command `counterpoise` itself.

They know nothing of samples: these go from workers to trainers, past the process that started them.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...balancer.transport.finding import find_address
from ..processes.clean_interpreter import clean_command

_WATCH = f"{__package__.rpartition('.')[0]}.processes.ending"
# By the name under which it is installed: what is below commands does not know theirs.
_COMMAND = "metadata.entry_points(group='console_scripts')['counterpoise'].load()"
STOP_S = 30.0
# Of temporary folders: one that begins as those of sockets do (loader/remote/balancer_process.py)
# would be taken for one that was left.
FOLDER = "fleet-counterpoise-"
LOOK_S = 0.05


def product_command(words: Sequence[str]) -> list[str]:
    """Return the command line of `counterpoise WORDS`, which ends with its parent."""
    call = f"m.end_with_parent(); from importlib import metadata; {_COMMAND}({list(words)!r})"
    return clean_command(_WATCH, call)


class BalancerProcess:
    """A balancer on this host, for fleets without an address of one."""

    def __init__(self, host: str, words: Sequence[str] = ()) -> None:
        """Start it; RuntimeError if it does not serve."""
        with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
            file = Path(folder, "address")
            options = ["--listen", f"tcp://{host}:0", "--address-file", str(file)]
            command = product_command(["balancer", *options, *words])
            self._process = subprocess.Popen(command, start_new_session=True)
            while not (address := find_address(file.as_uri())):
                self.check()
                time.sleep(LOOK_S)
        self.address = address

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the balancer ended with status {code}: see what it logged")

    def stop(self) -> None:
        """End it; kill it after STOP_S."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def local_launcher(address: str, words: Sequence[str]) -> Callable[[], "subprocess.Popen[bytes]"]:
    """Return what starts a worker here, for the balancer at an address, with words as options."""
    command = product_command(["worker", address, *words])
    # A session of its own: a terminal's Ctrl-C is for the process that drains the workers.
    return lambda: subprocess.Popen(command, start_new_session=True)
