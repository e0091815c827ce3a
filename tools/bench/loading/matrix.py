"""`counterpoise bench loader --matrix`: our loops against torch's, by sample and batch size.

The dataset's samples are tensors that exist, and default_collate makes the batches: what is left is
the loader's own work; with `--balanced` that of a balanced loop of one rank. Each system has one
process; for each cell all of them start a loader with persistent workers, and take turns. torch's
DataLoader runs twice, under two names: the ratio of those two is what this machine makes of equal
loaders (the control).
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from rich.table import Table

from ...console.spread import spread
from .measured_process import MeasuredProcess

SYSTEMS = ("ours", "torch", "control")
CONSUMERS = ("touch", "read")
CELLS = (
    *((size, batch) for size in (1_000, 150_000, 602_112) for batch in (1, 32, 256)),
    *((3_000_000, batch) for batch in (1, 32)),
)
# A pass is this much, so that short ones are not all start and end.
_PASS_BYTES = 250_000_000
_MOST_BATCHES = 800
_LEAST_BATCHES = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: bytes of a sample, samples of a batch, workers, what the consumer does.

    consumer: "touch" reads one byte of each batch, "read" all of them. balanced: whether ours is.
    """

    sample_bytes: int
    batch_size: int
    workers: int
    consumer: str
    balanced: bool = False

    @property
    def batches(self) -> int:
        """Batches of a pass."""
        fitting = _PASS_BYTES // (self.sample_bytes * self.batch_size)
        return max(_LEAST_BATCHES, min(_MOST_BATCHES, fitting))


@dataclass(frozen=True, slots=True)
class MatrixPass:
    """One pass: samples per second, CPU microseconds per sample of the trainer and of all.

    balancer_us: its part of all, 0 without one.
    """

    rate: float
    trainer_us: float
    balancer_us: float
    all_us: float


def cells(
    sizes: Sequence[tuple[int, int]],
    workers: Sequence[int],
    consumers: Sequence[str],
    balanced: bool = False,
) -> list[Cell]:
    """Return the matrix' cells, tables outermost."""
    return [
        Cell(size, batch, count, consumer, balanced)
        for consumer in consumers
        for count in workers
        for size, batch in sizes
    ]


def parse_cell(text: str) -> tuple[int, int]:
    """Return (bytes of a sample, a multiple of 8, and batch size); ValueError for other text.

    >>> parse_cell("150000x32")
    (150000, 32)
    """
    size, _, batch = text.partition("x")
    numbers = size.isdecimal() and batch.isdecimal() and int(size) and int(batch)
    if not numbers or int(size) % 8:
        raise ValueError(f"a cell is BYTESxBATCH, bytes in eights, as 150000x32; got {text!r}")
    return int(size), int(batch)


def measure(
    wanted: Sequence[Cell], rounds: int, cores: Sequence[int]
) -> Iterator[tuple[Cell, str, MatrixPass | None]]:
    """Yield (cell, system, pass) in turns; None for the first pass of each, which warms it up."""
    systems = {name: MeasuredProcess(_serve, name, tuple(cores)) for name in SYSTEMS}
    try:
        for cell in wanted:
            for name, system in systems.items():
                system.ask(cell)
                yield cell, name, None
            for number in range(rounds):
                turn = number % len(SYSTEMS)
                for name in SYSTEMS[turn:] + SYSTEMS[:turn]:
                    yield cell, name, systems[name].ask("pass")
    finally:
        for system in systems.values():
            system.close()


def _serve(pipe: "Pipe[Any, Any]", name: str, cores: tuple[int, ...]) -> None:
    import torch

    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    loader, cell = None, None
    try:
        while True:
            asked = pipe.recv()
            if isinstance(asked, Cell):
                _end(loader)
                cell = asked
                loader = loader_of(name, cell)
                if name == "ours" and cell.balanced:
                    next(iter(loader))  # which starts its processes
            pipe.send(_one_pass(loader, cell))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(f"{name}: {type(error).__name__}: {error}")
    finally:
        _end(loader)


def _end(loader: Any) -> None:
    """End a loader's workers: at the interpreter's end torch's would be waited for, in vain."""
    if getattr(loader, "is_balanced", False):
        loader.close()
    elif loader is not None and loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def loader_of(name: str, cell: Cell) -> Any:
    """Return a loader of tensors: "ours", or torch's for any other name."""
    import torch
    from torch.utils.data import DataLoader as TorchLoader

    from ....balancer.planning.problem.balance import Balance
    from ....loader import DataLoader

    class Tensors(torch.utils.data.Dataset[torch.Tensor]):
        """Sixteen tensors, again and again."""

        def __init__(self) -> None:
            shape, most = (cell.sample_bytes,), 255
            self.made = [torch.randint(0, most, shape, dtype=torch.uint8) for _ in range(16)]

        def __len__(self) -> int:
            return cell.batches * cell.batch_size

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.made[index % len(self.made)]

    named: dict[str, Any] = {
        "batch_size": cell.batch_size,
        "num_workers": cell.workers,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
    if name != "ours":
        return TorchLoader(Tensors(), **named)
    if cell.balanced:
        named |= {"balance": Balance("fixed"), "shuffle": False}
    return DataLoader(Tensors(), **named)


def _one_pass(loader: Any, cell: Any) -> MatrixPass:
    import torch

    batches = iter(loader)
    if getattr(loader, "is_balanced", False):
        balancer, workers = balanced_processes(loader)
    else:
        balancer, workers = [], [worker.pid for worker in batches._workers]
    begun, cpu, samples = time.perf_counter(), time.process_time(), 0
    before = cpu_s(balancer), cpu_s(workers)
    for batch in batches:
        samples += len(batch)
        # Eight bytes at a time, since torch adds up single bytes far slower than memory is read.
        wide = batch.view(torch.int64) if cell.consumer == "read" else None
        wide.sum() if wide is not None else batch[0, 0].item()
    seconds, own = time.perf_counter() - begun, time.process_time() - cpu
    planning, working = cpu_s(balancer) - before[0], cpu_s(workers) - before[1]
    spent = (1e6 * each / samples for each in (own, planning, own + planning + working))
    return MatrixPass(samples / seconds, *spent)


def balanced_processes(loader: Any) -> tuple[list[int], list[int]]:
    """Return the process ids of a balanced loader's balancer, and of its workers."""
    processes = loader._balanced._connection._processes
    supervisor = processes.pool.supervisor_pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
    return [processes.balancer.pid], [int(each) for each in children.split()]


def cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU seconds of other processes so far; ProcessLookupError if one has ended."""
    return sum(time.clock_gettime(_clock(each)) for each in processes)


def _clock(process: int) -> int:
    return (~process << 3) | 2  # the kernel's number for the CPU clock of a process


def report(passes: dict[Cell, dict[str, list[MatrixPass]]], rounds: int) -> dict[str, Any]:
    """Return the figures of every cell: ratios to torch with their range, and CPU per sample."""
    return {
        "rounds": rounds,
        "cells": [asdict(cell) | _figures(systems) for cell, systems in passes.items()],
        "load_average": os.getloadavg()[0],
    }


def _figures(systems: dict[str, list[MatrixPass]]) -> dict[str, Any]:
    return {
        "ratio": _ratios(systems["ours"], systems["torch"]),
        "ratio_of_equals": _ratios(systems["control"], systems["torch"]),
        **{
            name: {
                "samples_per_s": statistics.median(each.rate for each in found),
                **{
                    part: statistics.median(getattr(each, part) for each in found)
                    for part in ("trainer_us", "balancer_us", "all_us")
                },
            }
            for name, found in systems.items()
        },
    }


def _ratios(ours: list[MatrixPass], theirs: list[MatrixPass]) -> dict[str, float]:
    return spread([a.rate / b.rate for a, b in zip(ours, theirs, strict=True)])


def table(found: dict[str, Any]) -> Table:
    """Return the report as a table, one row a cell."""
    made = Table(title="our loop against torch's (samples/s, ratio of each round)")
    columns = ("reads", "workers", "sample", "batch", "samples/s", "ratio", "range", "control")
    for column in (*columns, "trainer us", "torch's", "balancer us", "all us", "torch's"):
        made.add_column(column, justify="right")
    for cell in found["cells"]:
        ours, torchs, ratio = cell["ours"], cell["torch"], cell["ratio"]
        control = cell["ratio_of_equals"]
        made.add_row(
            "all" if cell["consumer"] == "read" else "one byte",
            *(str(cell[name]) for name in ("workers", "sample_bytes", "batch_size")),
            f"{ours['samples_per_s']:.0f}",
            f"{ratio['median']:.2f}",
            f"{ratio['low']:.2f} to {ratio['high']:.2f}",
            f"{control['low']:.2f} to {control['high']:.2f}",
            *(f"{each['trainer_us']:.1f}" for each in (ours, torchs)),
            f"{ours['balancer_us']:.1f}" if cell["balanced"] else "",
            *(f"{each['all_us']:.1f}" for each in (ours, torchs)),
        )
    return made
