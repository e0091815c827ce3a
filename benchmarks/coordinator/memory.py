"""`bench coordinator --memory`: the balancer's memory for an epoch of many samples.

A worker that reads costs of two resources from a memory-mapped index, and one rank, drive a
coordinator without sockets until the first step can be sent. In mode "epoch" every sample has been
measured by then, and the epoch is planned. Each mode has a process of its own.
"""

import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Message,
    RankHello,
    RunFailed,
    StartRun,
    Welcome,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import (
    Batch,
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)
from counterpoise.balancer.server.malloc import keep_freed_memory, release_freed_memory
from counterpoise.workers.processes.clean_interpreter import clean_command

MODES = ("exact", "window", "epoch")
SAMPLES_PER_STEP = 1920
MICROBATCHES = 60
RANK, WORKER = b"rank", b"worker"
# Between two looks at the memory.
LOOK_S = 0.01


def measure(mode: str, samples: int) -> dict[str, float]:
    """Return a mode's figures, from a process of its own: see `figures`."""
    call = f"m.main({mode!r}, {samples})"
    done = subprocess.run(clean_command(__name__, call), capture_output=True, check=True)
    found: dict[str, float] = msgspec.json.decode(done.stdout)
    return found


def memory_table(found: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the figures of all modes as a table."""
    table = Table(title="private memory of the balancer for one epoch")
    for heading in ("mode", "kept, MB", "bytes a sample", "most, MB", "bytes a sample"):
        table.add_column(heading, justify="right")
    for mode, each in found.items():
        kept, most = each["kept_bytes"], each["most_bytes"]
        figures = (kept / 1e6, kept / each["samples"], most / 1e6, most / each["samples"])
        table.add_row(mode, *(f"{figure:,.1f}" for figure in figures))
    return table


def main(mode: str, samples: int) -> None:
    """Write the figures of a mode to standard output, as JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(figures(mode, samples)))


def figures(mode: str, samples: int) -> dict[str, float]:
    """Return the bytes that a mode keeps when the first step can be sent, and the most before that.

    Private bytes: those of the index are the kernel's.
    """
    keep_freed_memory()  # as a balancer does
    with tempfile.TemporaryDirectory() as folder:
        index = _index(Path(folder) / "costs", samples)
        _drive(mode, index[: 4 * SAMPLES_PER_STEP])  # compiles what planning needs
        release_freed_memory()
        before = private_bytes()
        with _watched() as seen:
            run = _drive(mode, index)
            release_freed_memory()  # as it does when it has nothing to do
            after = private_bytes()
        del run
    return {
        "samples": samples,
        "kept_bytes": after - before,
        "most_bytes": max(*seen, after) - before,
    }


def private_bytes() -> int:
    """Return the bytes of memory that are this process' alone, and no file's."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return 1024 * int(line.split()[1])


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Give a list to which this process' private bytes are added again and again."""
    seen, is_over = [private_bytes()], threading.Event()

    def watch() -> None:
        while not is_over.wait(LOOK_S):
            seen.append(private_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _index(path: Path, samples: int) -> Any:
    """Return costs of two resources (n, 2), in a memory-mapped file."""
    draw = np.random.default_rng(0)
    index = np.memmap(path, np.int32, "w+", shape=(samples, 2))
    for begin in range(0, samples, 1 << 20):
        part = index[begin : begin + (1 << 20)]
        part[:, 0] = draw.integers(0, 40, len(part))
        part[:, 1] = draw.integers(16, 4096, len(part))
    return index


def _drive(mode: Any, index: Any) -> Coordinator:
    """Return a coordinator that has just sent the first microbatch of an epoch."""
    balance = Balance(
        "isf", mode=mode, partition="greedy", accumulate=MICROBATCHES,
        budgets={"tiles": 1600, "tokens": 131_072},
    )  # fmt: skip
    plan = PlanConfig.from_balance(
        balance, ranks=1, resources=("tiles", "tokens"), samples_per_step=SAMPLES_PER_STEP,
        batch_size=None, drop_last=True, empty_microbatches=True,
    )  # fmt: skip
    job = JobSpec(plan=plan, source={"pattern": "*.tar"}, buffer_bytes=1 << 33)
    coordinator = Coordinator()
    inbox = deque[tuple[bytes, Message, list[bytes]]]([
        (RANK, RankHello((0,), to_json(job)), []),
        (WORKER, WorkerHello("worker", 0, "host", 0), []),
    ])  # fmt: skip
    now = 0.0
    while inbox:
        now += 1e-6
        for effect in coordinator.handle(*inbox.popleft(), now):
            message = effect.message
            if isinstance(message, Batch):
                return coordinator
            if isinstance(message, RunFailed):
                raise RuntimeError(message.reason)
            inbox.extend(_answers(message, index))
    raise RuntimeError("the coordinator has sent no microbatch")


def _answers(message: Message, index: Any) -> Iterator[tuple[bytes, Message, list[bytes]]]:
    """Return what the worker and the rank say to a message."""
    if isinstance(message, Welcome):
        yield WORKER, WorkerReady(len(index), "index", message.number), []
        yield RANK, StartRun(0, 0, EpochPosition(0, 0, 0, 0, "")), []
        yield RANK, RequestBatch(0, 0, 0, 0), []
    elif isinstance(message, Lease) and message.kind == "probe":
        rows = index[[ref.index for ref in message.refs]].tolist()
        found = (
            Probed(ref.ordinal, f"sample-{ref.index:09d}", tuple(row), 150_000)
            for ref, row in zip(message.refs, rows, strict=True)
        )
        yield WORKER, ProbeDone(message.lease, tuple(found), 1), []
    elif isinstance(message, Lease):
        items = [
            DecodedItem(r.ordinal, f"sample-{r.index:09d}", (), b"", 0, 0) for r in message.refs
        ]
        yield WORKER, DecodeDone(message.lease, tuple(items), usual_us=1), [b"pixels"] * len(items)
