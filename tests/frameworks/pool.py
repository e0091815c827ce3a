"""Processes that stay for many cases: importing torch and a framework costs seconds in each.

A pool has `ranks` processes with a gloo group between them (none for one process), and runs a
function by its name in all of them. What a case leaves behind is put back after it.
"""

import gc
import importlib
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

CASE_TIMEOUT_S = 200.0


class RankError(AssertionError):
    """A case raised in one of the processes; the message has its traceback."""


class Pool:
    """`ranks` processes that run cases together."""

    def __init__(self, ranks: int) -> None:
        """Start no process before a case asks for them."""
        self.ranks = ranks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="counterpoise-frameworks-")
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, self.ranks, self._folder.name)
            process = context.Process(target=_serve, args=arguments)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: str, **named: Any) -> list[Any]:
        """Run "module:function" of tests.frameworks in every process; return what each returned.

        RankError with all tracebacks if one raised, TimeoutError or EOFError if one does not
        answer, or ends.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, named))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(CASE_TIMEOUT_S):
                    raise TimeoutError(f"rank {rank} of {self.ranks} did not end {function}")
                answers.append(pipe.recv())
            except (TimeoutError, EOFError):
                self.close()  # the next case has new processes
                raise
        failed = [answer for good, answer in answers if not good]
        if failed:
            raise RankError("\n".join(failed))
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        if self._processes:
            self._folder.cleanup()
        self._pipes, self._processes = [], []


def _serve(pipe: Connection, rank: int, ranks: int, folder: str) -> None:
    """Run what is asked for until None comes."""
    os.environ |= {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if ranks > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "NODE_RANK": "0"}
        os.environ |= {"TORCHELASTIC_RUN_ID": "pool"}  # Lightning's sign that others launch ranks
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # only asked whether set
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if ranks > 1:
        store, most = f"file://{folder}/group", timedelta(seconds=CASE_TIMEOUT_S / 2)
        dist.init_process_group("gloo", store, most, rank=rank, world_size=ranks)
    while (asked := pipe.recv()) is not None:
        function, named = asked
        module, _, name = function.partition(":")
        try:
            case = getattr(importlib.import_module(f"tests.frameworks.{module}"), name)
            pipe.send((True, case(**named)))
        except BaseException:
            pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
        if ranks > 1:
            dist.barrier()
        _reset()
    if ranks > 1:
        dist.destroy_process_group()


def _reset() -> None:
    """Forget what accelerate keeps for a process, so that the next case begins anew."""
    from .tiny import KEPT

    while KEPT:
        KEPT.pop().close()
    gc.collect()
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state()
        state.GradientState._reset_state()
        state.PartialState._shared_state.clear()
