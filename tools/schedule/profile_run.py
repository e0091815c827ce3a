"""Run a training command until its pipeline has written enough measured steps."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

# What a Pipeline reads: the folder for its steps (sched/runtime/execution/drive.py).
VARIABLE = "COUNTERPOISE_TIMELINES"
# A command that was asked to end has this long, seconds.
_GRACE_S = 30.0
_POLL_S = 0.1


def run_until_measured(command: Sequence[str], folder: Path, steps: int) -> list[Path]:
    """Run a command until it has measured `steps` steps, end it, and return their files in order.

    The command's own output goes where ours goes. Raises ValueError if it ends before, with what it
    ended with, and OSError if it cannot be started.
    """
    environment = {**os.environ, VARIABLE: str(folder)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        while len(found := measured_steps(folder)) < steps:
            if process.poll() is not None:
                found = measured_steps(folder)
                break
            time.sleep(_POLL_S)
    finally:
        _end(process)
    if len(found) < steps:
        raise ValueError(
            f"{command[0]} ended with status {process.returncode} after {len(found)} measured "
            f"steps of {steps}; run a job that trains a counterpoise Pipeline for so many steps"
        )
    return found[:steps]


def measured_steps(folder: Path) -> list[Path]:
    """Return the files of a folder's measured steps, by number."""
    return sorted(folder.glob("step-*.json"), key=lambda path: int(path.stem.split("-")[1]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command and its children to end, and end them if they do not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
