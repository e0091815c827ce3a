"""Commands as processes of their own."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.forking.popen import COMMAND, Popen

HERE = Path(__file__).parent
LIMIT_S = 120  # a loaded machine takes its time to start a process


class Process:
    """A command in its own process, whose standard error can be waited on."""

    def __init__(self, *words, command=None, **variables):
        """`command`: in place of `counterpoise WORDS`."""
        self.process = Popen(
            command or [COMMAND, *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **variables},
        )
        self.lines = []
        self.news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            with self.news:
                self.lines.append(line)
                self.news.notify_all()

    def wait_for(self, words):
        """Return the first line with these words."""

        def found():
            return [line for line in self.lines if words in line]

        with self.news:
            assert self.news.wait_for(found, LIMIT_S), self.lines
            return found()[0]

    def end(self, number=signal.SIGTERM):
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


def limited(limit, *words):
    """Return the words that run a command with at most so many open files."""
    program = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); "
        "from counterpoise.tools.cli import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-c", program, *words]
