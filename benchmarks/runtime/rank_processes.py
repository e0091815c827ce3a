"""Processes that are the ranks of one pipeline, stopped while others are measured.

Each holds an object, and a call runs one of its methods on all ranks at once. A rank's gloo threads
wake up a hundred times a second even when nothing is sent; SIGSTOP keeps those of one contender
out of the other's times.
"""

import multiprocessing as mp
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_LIMIT = timedelta(seconds=120)
_END_S = 20.0
Make = Callable[..., Any]


def _serve(
    rank: int, ranks: int, meeting: str, device: str, pipe: Connection, make: Make, given: Any
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, meeting, rank=rank, world_size=ranks, timeout=_LIMIT)
    held: Any = None
    while (task := pipe.recv()) is not None:
        name, arguments = task
        try:
            if not name:
                held = make(rank, *given)
            pipe.send((True, getattr(held, name)(*arguments) if name else None))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class RankProcesses:
    """The processes of all ranks; `make(rank, *given)` makes the object of each.

    device: "cuda" gives each rank the GPU of its number, and NCCL beside gloo. loads: the ranks
    have workers of a loader. limit_s: the longest that a call may take; None: no limit. Raises
    RuntimeError, with the rank's traceback, for what fails there.
    """

    def __init__(
        self,
        ranks: int,
        make: Make,
        *given: Any,
        device: str = "cpu",
        loads: bool = False,
        limit_s: float | None = None,
    ) -> None:
        self._limit_s, self._loads = limit_s, loads
        context = mp.get_context("forkserver")
        # What takes seconds to import is imported once.
        context.set_forkserver_preload([__name__, make.__module__])
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"file://{Path(self._folder.name) / 'meeting'}"
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, ranks, meeting, device, theirs, make, given),
                daemon=not loads,  # a daemon can have no processes of its own
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self.call("")
        except RuntimeError:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Run a method of every rank's object, and return what each returns."""
        for pipe in self._pipes:
            pipe.send((name, arguments))
        answers: dict[Connection, Any] = {}
        # The first to fail is heard at once: the others may wait for it.
        while len(answers) < len(self._pipes):
            answered = wait([each for each in self._pipes if each not in answers], self._limit_s)
            if not answered:
                raise RuntimeError(f"no rank answered {name or 'its start'} in {self._limit_s} s")
            for ready in answered:
                assert isinstance(ready, Connection)
                pipe = ready
                rank = self._pipes.index(pipe)
                try:
                    fine, answers[pipe] = pipe.recv()
                except EOFError:
                    raise RuntimeError(f"the process of rank {rank} ended") from None
                if not fine:
                    raise RuntimeError(f"rank {rank} failed:\n{answers[pipe]}")
        return [answers[pipe] for pipe in self._pipes]

    def pause(self) -> None:
        """Stop all processes."""
        self._signal(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Run the processes inside the block only."""
        self._signal(signal.SIGCONT)
        yield
        self.pause()

    def close(self) -> None:
        """End all processes."""
        if self._loads:  # a killed rank leaves workers of its loaders behind
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.send(None)
            for process in self._processes:
                process.join(_END_S)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def __enter__(self) -> "RankProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            assert process.pid is not None
            os.kill(process.pid, number)
