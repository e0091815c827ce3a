"""The interface of engines, which start workers on a cluster and end them.

An engine runs the command `counterpoise worker` somewhere, and knows nothing of samples: these go
from workers to trainers, past it.
"""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from ..processes.clean_interpreter import clean_command

_MODULE = f"{__name__.partition('.')[0]}.tools.cli"
_PARENT = f"{__package__.rpartition('.')[0]}.processes.parent_watch"
_ADDRESS = re.compile(r"listening on (tcp://[^\s;,\"]+)")
# A worker ends with one of these where another would end so, too: its command line is wrong, or its
# data are.
HOPELESS = (2, 4)
STOP_S = 30.0


class Engine(Protocol):
    """Starts and ends workers. hint: where a worker waits that was started and has not come."""

    hint: str

    def start(self, workers: int) -> None:
        """Have so many workers at least; those that were lost are started again.

        RuntimeError where that is useless.
        """

    def address(self) -> str:
        """Return the balancer's address."""

    def drain(self, workers: int) -> None:
        """Let all workers but so many finish what they have, and end."""

    def stop(self) -> None:
        """Drain all workers, wait for them, and end what else was started."""


def product_command(words: Sequence[str]) -> list[str]:
    """Return the command line of `counterpoise WORDS`, which ends with who starts it."""
    watch = f"import {_PARENT} as w; w.end_with_parent()"
    return clean_command(_MODULE, f"exec({watch!r}); m.main({list(words)!r})")


class BalancerProcess:
    """A balancer on this host, for those who were given no address of one."""

    def __init__(self, host: str, words: Sequence[str] = ()) -> None:
        """Start it; RuntimeError if it does not serve."""
        listen = f"tcp://{host}:0"
        command = product_command(["balancer", "--listen", listen, *words])
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.address = self._find_address()
        threading.Thread(target=self._pass_on, daemon=True).start()

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the balancer ended with status {code}: see what it logged")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        end(self._process, STOP_S)

    def _find_address(self) -> str:
        for line in self._process.stderr or ():
            sys.stderr.write(line)
            if found := _ADDRESS.search(line):
                return found[1]
        raise RuntimeError(f"the balancer ended with status {self._process.wait()}")

    def _pass_on(self) -> None:
        for line in self._process.stderr or ():
            sys.stderr.write(line)


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Wait for a process that was asked to end; kill it after `timeout_s`."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
