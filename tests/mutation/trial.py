"""Runs something in a forked copy of this process, within limits, and takes its answer."""

import contextlib
import gc
import json
import os
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A copy that uses no CPU, because its threads wait for each other, is ended after so long.
IDLE_S = 120


def in_a_copy(
    action: Callable[[], dict[str, Any]], limit_s: float, idle_s: float = IDLE_S
) -> tuple[dict[str, Any] | None, float]:
    """Run something in a forked process; return its answer (None: it did not end) and CPU seconds.

    limit_s: of CPU, so that the load of the machine does not matter; idle_s: of time. What the copy
    writes is thrown away, and so are its temporary files and what it started.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        answer = Path(folder, "answer.json")
        child = os.fork()
        if child == 0:
            _become(folder, limit_s, idle_s)
            try:
                answer.write_text(json.dumps(action()))
            except BaseException:
                answer.write_text(json.dumps({"error": traceback.format_exc()}))
            finally:
                os._exit(0)
        _, _, usage = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        found = json.loads(answer.read_text()) if answer.exists() else None
    if found is not None and "error" in found:
        raise RuntimeError(found["error"])
    return found, round(usage.ru_utime + usage.ru_stime, 2)


def _become(folder: str, limit_s: float, idle_s: float) -> None:
    """Make a copy a process group of its own, with limits and a folder for its files."""
    os.setpgid(0, 0)
    # The parent's objects stay shared with it instead of being touched by a collection.
    gc.freeze()
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    cpu_s = int(limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 2))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, idle_s)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
