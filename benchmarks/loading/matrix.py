"""`make bench NAME=matrix`: our loops against other loaders', by sample and batch size.

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
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
from rich.progress import Progress

from counterpoise.tools.console.reporting import emit, progress_console

from . import matrix_report
from .matrix_report import MatrixPass
from .processes import MeasuredProcess, cpu_s_below
from .systems.cell import CELLS, CONSUMERS, Cell, cells, parse_cell
from .systems.peers import OWN, open_system, versions

_LOOK_S = 0.02
_MOST_LOOKS = 50
# Of a look's time: heartbeats and the like.
_BUSY = 0.1

# A pass, None for one that warms up, or why a peer takes part no more.
Measured = MatrixPass | str | None


@click.command("matrix")
@click.option("--workers", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--cores", help="Cores to pin to, such as 0,1; default: all that are allowed.")
@click.option("--peer", multiple=True, help="Of other people's loaders these; default: all.")
@click.option("--balanced", is_flag=True, help="A balanced loop in the plain one's place.")
@click.option("--cell", multiple=True, metavar="BYTESxBATCH", help="Of these two; default: all.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    workers: tuple[int, ...],
    pairs: int,
    cores: str | None,
    peer: tuple[str, ...],
    balanced: bool,
    cell: tuple[str, ...],
    as_json: bool,
) -> None:
    r"""Compare loaders by the size of samples and batches: ours, torch's, and others' here.

    `make bench NAME=peers` installs the others, in an environment of their own.

    \b
    Examples:
      make bench NAME=matrix ARGS="--balanced --cell 4194304x32 --json"
      make bench NAME=peers ARGS="--peer spdl --peer grain --pairs 10 --json"
    """
    wanted = cells([parse_cell(each) for each in cell] or CELLS, workers, CONSUMERS, balanced)
    peers = versions(peer)
    there = [name for name, version in peers.items() if version]
    passes: dict[Cell, dict[str, list[MatrixPass]]]
    passes = {each: {name: [] for name in (*OWN, *there)} for each in wanted}
    failures: dict[str, str] = {}
    with Progress(console=progress_console, transient=True) as progress:
        total = len(wanted) * (len(OWN) + len(there)) * (pairs + 1)
        task = progress.add_task("passes", total=total)
        for each, name, measured in measure(wanted, pairs, parse_cores(cores), there):
            progress.advance(task)
            if isinstance(measured, str):
                failures[name] = measured
            elif measured is not None:
                passes[each][name].append(measured)
    report = matrix_report.report(passes, pairs, peers, failures)
    emit(report, as_json, *matrix_report.tables(report))


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Return the cores of a text such as "0,1", all that are allowed for None; else ValueError."""
    allowed = os.sched_getaffinity(0)
    if text is None:
        return tuple(sorted(allowed))
    try:
        cores = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--cores got {text!r}; give numbers such as 0,1") from error
    if not set(cores) <= allowed:
        raise ValueError(f"--cores got {text}; allowed on this machine are {sorted(allowed)}")
    return cores


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
    del batch, wide  # their memory may be all that is waited for
    _wait_until_idle(own_pid)
    each_us = (1e6 * each / samples for each in (own, own + sum(spent.values())))
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
