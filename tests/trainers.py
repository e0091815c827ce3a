"""Trainers as processes of their own, whose descendants can be told by their environment."""

import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from tests.faults.leftovers import processes, segments, shared_memory
from tests.forking.popen import MARK, Popen

ENDS_WITHIN_S = 5.0


class Trainer:
    """A running script. Its temporary files are in a folder of its own."""

    def __init__(self, folder: Path, text: str) -> None:
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.temporary = folder / "t"
        self.temporary.mkdir(exist_ok=True)
        self.shared_before = segments()
        script = folder / "trainer.py"
        script.write_text(text)
        name, value = self.mark.split("=")
        self.process = Popen(
            [sys.executable, "-W", "ignore", str(script)],
            env={**os.environ, name: value, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def survivors(self) -> list[int]:
        """Processes that inherited the trainer's environment."""
        return [int(each.split()[1]) for each in processes(self.mark)]

    def leftovers(self) -> list[str]:
        """Directories of sockets, and shared memory of ours or torch's."""
        sockets = [path.name for path in self.temporary.glob("counterpoise-*")]
        return sockets + shared_memory(self.shared_before)

    def kill(self) -> None:
        """End the trainer as the kernel's memory killer would."""
        self.process.kill()
        self.process.wait()

    def assert_nothing_is_left(self, within_s: float = ENDS_WITHIN_S) -> None:
        """Wait a little for everything to be gone."""
        deadline, bell = time.monotonic() + within_s, threading.Event()
        while (left := self.survivors()) or self.leftovers():
            assert time.monotonic() < deadline, (left, self.leftovers())
            bell.wait(0.02)
        self.process.communicate()


def run_trainer(folder: Path, text: str) -> tuple[int, str, str]:
    """Run a script to its end: status, output, errors. Nothing of it may be left."""
    trainer = Trainer(folder, text)
    out, err = trainer.process.communicate(timeout=120)
    trainer.assert_nothing_is_left()
    return trainer.process.returncode, out, err
