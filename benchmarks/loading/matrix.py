"""`counterpoise bench loader --matrix`: our loops against other loaders', by sample and batch size.

The dataset's samples are tensors that exist, and default_collate makes the batches: what is left is
the loader's own work; with `--balanced` that of a balanced loop of one rank. Each system has one
process; for each cell all of them start a loader with persistent workers, and take turns. torch's
DataLoader runs twice, under two names: the ratio of those two is what this machine makes of equal
loaders (the control). Peers that cannot do just this do what is nearest; `systems/` says what.

A pass' CPU time is that of all processes below the measured one. It ends when they have nothing to
do, so that what a loader fetches ahead is not done in another's turn.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

from .processes.measured import MeasuredProcess
from .processes.tree import cpu_s_below, part_of
from .systems.cell import Cell
from .systems.peers import OWN, open_system

_LOOK_S = 0.02
_MOST_LOOKS = 50
# Of a look's time: heartbeats and the like.
_BUSY = 0.1


@dataclass(frozen=True, slots=True)
class MatrixPass:
    """One pass: samples per second, CPU microseconds per sample of the trainer and of all.

    balancer_us: its part of all, 0 without one.
    """

    rate: float
    trainer_us: float
    balancer_us: float
    all_us: float


# A pass, None for one that warms up, or why a peer takes part no more.
Measured = MatrixPass | str | None


def measure(
    wanted: Sequence[Cell], rounds: int, cores: Sequence[int], peers: Sequence[str] = ()
) -> Iterator[tuple[Cell, str, Measured]]:
    """Yield (cell, system, pass) in turns; None for the first pass of each, which warms it up.

    A peer that fails is left out from there on, with its error in place of a pass.
    """
    systems = {name: MeasuredProcess(_serve, name, tuple(cores)) for name in (*OWN, *peers)}
    try:
        for cell in wanted:
            for name in [*systems]:
                found = _ask(systems, name, cell)
                yield cell, name, found if isinstance(found, str) else None
            for number in range(rounds):
                turn = number % len(systems)
                for name in [*systems][turn:] + [*systems][:turn]:
                    yield cell, name, _ask(systems, name, "pass")
    finally:
        for system in systems.values():
            system.close()


def _ask(systems: dict[str, MeasuredProcess], name: str, what: Any) -> MatrixPass | str:
    try:
        found: MatrixPass = systems[name].ask(what)
    except (ValueError, RuntimeError) as error:
        if name in OWN:
            raise
        systems.pop(name).close()
        return str(error)
    return found


def _serve(pipe: "Pipe[Any, Any]", name: str, cores: tuple[int, ...]) -> None:
    import torch

    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    loader: Any = None
    cell: Any = None
    try:
        while True:
            asked = pipe.recv()
            if isinstance(asked, Cell):
                if loader is not None:
                    loader.close()
                cell, loader = asked, open_system(name, asked)
            pipe.send(one_pass(loader, cell))
    finally:
        if loader is not None:
            loader.close()


def one_pass(loader: Any, cell: Cell) -> MatrixPass:
    """Take all batches of a pass; return its figures when all processes are idle again."""
    import torch

    batches, own_pid, samples = iter(loader), os.getpid(), 0
    before = cpu_s_below(own_pid)
    begun, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        samples += len(batch)
        # Eight bytes at a time, since torch adds up single bytes far slower than memory is read.
        wide = batch.view(torch.int64) if cell.consumer == "read" else None
        wide.sum() if wide is not None else batch[0, 0].item()
    seconds, own = time.perf_counter() - begun, time.process_time() - cpu
    spent = {pid: now - before.get(pid, 0.0) for pid, now in cpu_s_below(own_pid).items()}
    planning = sum(each for pid, each in spent.items() if part_of(pid) == "balancer")
    del batch, wide  # their memory may be all that is waited for
    _wait_until_idle(own_pid)
    each_us = (1e6 * each / samples for each in (own, planning, own + sum(spent.values())))
    return MatrixPass(samples / seconds, *each_us)


def _wait_until_idle(pid: int) -> None:
    """Return when the processes below one do little, or after a second."""
    last = sum(cpu_s_below(pid).values())
    for _ in range(_MOST_LOOKS):
        time.sleep(_LOOK_S)
        now = sum(cpu_s_below(pid).values())
        if now - last < _BUSY * _LOOK_S:
            return
        last = now
