"""Runs the example that trains on a pipeline, in processes of its own.

What runs is `examples/train_vlm.py`, which is part of the package for this. torchrun would start it
too; here it needs no further command, and ends with all its processes when this one is interrupted.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]

Process = subprocess.Popen[bytes]
PROCESSES = 4
# How long processes that were asked to end may take to do so.
_END_S = 5.0


def example() -> Path:
    """Return the program that runs. Raises FileNotFoundError for an incomplete installation."""
    path = Path(str(resources.files(__package__.split(".")[0]))) / "examples" / "train_vlm.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; install counterpoise again")
    return path


def run_ranks(program: Path, words: Sequence[str]) -> Generator[str, None, None]:
    """Run a program on PROCESSES ranks, and yield the lines that the first one prints.

    However this ends, all processes have ended then. Raises RuntimeError, with what the process
    said last, if one fails.
    """
    with ExitStack() as held:
        # SIGTERM ends all processes, too, as Ctrl-C does.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        held.callback(signal.signal, signal.SIGTERM, before)
        # Ranks meet in a store of this process, so no port is chosen that another may take first.
        limit = timedelta(seconds=120)
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False)
        command = [sys.executable, str(program), *words]
        errors = [held.enter_context(tempfile.TemporaryFile("w+")) for _ in range(PROCESSES)]
        processes: list[Process] = []
        held.callback(_end, processes)
        for rank, said in enumerate(errors):
            process = subprocess.Popen(
                command,
                env=_environment(rank, store.port),
                stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                stderr=said,
                # The terminal's Ctrl-C reaches this process alone, which ends the others.
                process_group=0,
            )
            processes.append(process)
        yield from _lines(processes, errors)


def _environment(rank: int, port: int) -> dict[str, str]:
    """Return the environment of a rank, as torchrun gives it."""
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The store is here: the first rank is not to open one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        # A model this small gains nothing from threads, and ranks would compete for the cores.
        "OMP_NUM_THREADS": "1",
    }


def _lines(processes: Sequence[Process], errors: Sequence[IO[str]]) -> Iterator[str]:
    """Yield lines until all processes have ended, or one has failed."""
    out = processes[0].stdout
    assert out is not None
    text = b""
    with selectors.DefaultSelector() as waiting, ExitStack() as held:
        waiting.register(out, selectors.EVENT_READ)
        for rank, process in enumerate(processes):
            ended = os.pidfd_open(process.pid)
            held.callback(os.close, ended)
            waiting.register(ended, selectors.EVENT_READ, (process, rank))
        while waiting.get_map():
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fd)
                    process, rank = key.data
                    _refuse_failed(process, rank, errors[rank])
                elif more := os.read(key.fd, 65536):
                    *whole, text = (text + more).split(b"\n")
                    yield from (line.decode() for line in whole)
                else:
                    waiting.unregister(key.fd)


def _refuse_failed(process: Process, rank: int, errors: IO[str]) -> None:
    """Raise RuntimeError for a process that has ended in an error."""
    if process.wait() == 0:
        return
    errors.seek(0)
    said = [line for line in errors.read().splitlines() if line.strip()]
    last = said[-1].strip() if said else f"it ended with status {process.returncode}"
    raise RuntimeError(f"process {rank} of the pipeline failed: {last}")


def _end(processes: Sequence[Process]) -> None:
    """End the processes, with those that they have started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        for process in processes:
            # After SIGKILL there is nothing to wait for but the kernel.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
    for process in processes:
        if process.stdout is not None:
            process.stdout.close()
