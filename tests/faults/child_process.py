"""The processes of trials: forked (tests/forking/popen.py), marked, each with a log."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.forking.popen import COMMAND, MARK, Popen


class ChildProcess:
    """A running command of ours, or a module of this folder that trains."""

    def __init__(self, words: Sequence[str], log: Path, temporary: Path, mark: str) -> None:
        """`words`: "tests.faults.MODULE" and its arguments, or a command; `mark`: a UUID."""
        program = [COMMAND, *words]
        if words[0].startswith("tests."):
            program = [sys.executable, "-c", f"from {words[0]} import main; main({[*words[1:]]})"]
        own = {MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        with log.open("ab") as output:
            self._process = Popen(
                program, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **own},
            )  # fmt: skip

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        self._process.send_signal(number)

    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether the process has ended, waiting for it up to `within_s`."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self, within_s: float) -> None:
        """End the process at once, and wait for that."""
        self.send(signal.SIGKILL)
        self.ended(within_s)
