"""Shows the example that trains on a pipeline as a form of the demo: options, ranks, summary, page.

What runs is `examples/train_vlm.py`, which is part of the package for this. torchrun would start it
too; here it needs no further command, and ends with all its processes when this one is interrupted.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import IO, Any

import click
from click.core import ParameterSource
from rich.table import Table
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..console.reporting import emit, progress_console
from .data import cache_folder

# Options of the demo that both of its forms take, and those of this one.
_SHARED = {"data", "as_json", "pipeline"}
_OWN = {"steps", "pp", "replan", "out"}
_FILE = click.Path(path_type=Path, dir_okay=False)
PIPELINE_OPTIONS = (
    click.option("--pipeline", is_flag=True, help="Train on a pipeline, encoder in its bubbles."),
    click.option(
        "--steps", default=20, show_default=True, type=click.IntRange(1), help="With --pipeline."
    ),
    click.option(
        "--pp", default="4", show_default=True, type=click.Choice(["2", "4"]),
        help="With --pipeline: ranks of a pipeline, of 4 processes.",
    ),
    click.option(
        "--replan", default="on", show_default=True, type=click.Choice(["on", "off"]),
        help="With --pipeline: plan again where steps take other times.",
    ),
    click.option("--out", type=_FILE, help="With --pipeline: the page [default: in your cache]."),
)  # fmt: skip
Process = subprocess.Popen[bytes]
PROCESSES = 4
# How long processes that were asked to end may take to do so.
_END_S = 5.0


def refuse_other_options(pipeline: bool) -> None:
    """Raise ValueError for an option that was given, and does not belong to what runs."""
    ctx = click.get_current_context()
    for name in ctx.params.keys() - _SHARED:
        is_given = ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if is_given and (name in _OWN) != pipeline:
            option = f"--{name.replace('_', '-')}"
            known = ", ".join(f"--{name}" for name in sorted(_OWN))
            raise ValueError(
                f"{option} says nothing with --pipeline, which takes --data, --json, {known}"
                if pipeline
                else f"{option} needs --pipeline; leave it out, or add --pipeline"
            )


def show_pipeline(
    data: str | None, steps: int, pp: str, replan: str, out: Path | None, *, as_json: bool
) -> None:
    """Train, print a line for each step and a summary, and write the timeline's page."""
    page = (out or cache_folder() / "demo-pipeline.html").absolute()
    words = ["--pp", pp, "--steps", str(steps), "--replan", replan, "--page", str(page), "--json"]
    words += ["--data", data] if data else []
    program = example()
    progress_console.print(f"running {program} on {PROCESSES} processes", soft_wrap=True)
    report: dict[str, Any] = {}
    with closing(run_ranks(program, words)) as lines:
        for line in lines:
            if line.startswith("{"):
                report = json.loads(line)
            else:
                # With --json the report alone goes to standard output.
                print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    emit(report, as_json, _table(report))
    told = f"the last step's timeline, measured over simulated: {page}"
    progress_console.print(told, soft_wrap=True)


def _table(report: Mapping[str, Any]) -> Table:
    table = Table("", "measured", "simulated", caption="medians of all steps", box=None)
    steps = (f"{report[name]:.3f} s" for name in ("step_measured", "step_simulated"))
    table.add_row("step", *steps)
    planned = f"{report['hidden_planned']:.0%} (as planned)"
    table.add_row("encoder hidden", f"{report['hidden_measured']:.0%}", planned)
    table.add_row("loss", f"{report['loss_first']:.3f} to {report['loss_last']:.3f}", "")
    for change in report["plan_changes"]:
        gains = (f"{change[name]:.1%} shorter" for name in ("gain_measured", "gain_simulated"))
        table.add_row(f"planned again before step {change['step']}", *gains)
    return table


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
