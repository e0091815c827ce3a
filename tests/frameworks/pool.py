"""Processes that stay for many cases: importing torch and a framework costs seconds in each.

A pool has `ranks` processes with a gloo group between them (none for one process), and runs a
function by its name in all of them. What a case leaves behind is put back after it.
"""

import functools
import gc
import importlib
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing import forkserver, get_context, set_start_method
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest.mock import patch

CASE_TIMEOUT_S = 200.0
# How long the others may go on when a process has failed, and then take to end.
LAST_WORDS_S = 5.0
ASKED_S = 2.0


class RankError(AssertionError):
    """A case raised in one of the processes; the message has its traceback."""


@functools.cache
def _server() -> forkserver.ForkServer:
    """Return a server that has the frameworks; multiprocessing's own has what others wanted."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["tests.frameworks.imported"])
    return server


class Pool:
    """`ranks` processes that run cases together."""

    def __init__(self, ranks: int) -> None:
        """Start no process before a case asks for them."""
        self.ranks = ranks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory(prefix="counterpoise-frameworks-")
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, self.ranks, self._folder.name)
            process = context.Process(target=_serve, args=arguments)
            with patch.object(
                forkserver, "connect_to_new_process", _server().connect_to_new_process
            ):
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: str, **named: Any) -> list[Any]:
        """Run "module:function" of tests.frameworks in every process; return what each returned.

        RankError with the tracebacks if one raised or ended, TimeoutError if one does not answer.
        After an error the next case has new processes: who raised may have left the others in a
        collective, in which they would stay.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, named))
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.ranks and self._take_answers(function, answers):
            pass
        failed = [answer for is_good, answer in answers.values() if not is_good]
        silent = [rank for rank in range(self.ranks) if rank not in answers]
        if failed or silent:
            self.close(ASKED_S)
        if failed:
            raise RankError("\n".join(failed))
        if silent:
            raise TimeoutError(f"ranks {silent} of {self.ranks} did not end {function}")
        return [answers[rank][1] for rank in range(self.ranks)]

    def _take_answers(self, function: str, answers: dict[int, tuple[bool, Any]]) -> bool:
        """Wait for the next answers; return whether any came, in a short time after a failure."""
        open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
        has_failed = not all(is_good for is_good, _ in answers.values())
        ready = wait(list(open_pipes), LAST_WORDS_S if has_failed else CASE_TIMEOUT_S)
        for pipe, rank in open_pipes.items():
            if pipe not in ready:
                continue
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = False, f"rank {rank} ended in {function}"
        return bool(ready)

    def close(self, patience_s: float = 20.0) -> None:
        """End the processes; one that does not end within `patience_s` is killed."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(patience_s)
            if process.is_alive():
                process.kill()
                process.join()
        if self._processes:
            self._folder.cleanup()
        self._pipes, self._processes = [], []


def _serve(pipe: Connection, rank: int, ranks: int, folder: str) -> None:
    """Run what is asked for until None comes."""
    # As in a rank of torchrun; a process that a fork server has forked would have another start
    # its workers, each of which imports the frameworks anew.
    set_start_method("fork", force=True)
    importlib.import_module("tests.frameworks.imported")
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
