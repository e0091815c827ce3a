"""`make bench NAME=transports`: the remote wing beside torch's DataLoader, on one host.

Two processes share a data-parallel rank (`ranks={"tp": 2}`), so that one decode serves both,
over an embedded balancer; the first has the workers that are counted, the second some of its own.
Samples are pulled from the worker that has them. torch's DataLoader takes turns, in one process.
CPU time is that of all processes, for each sample that a process gets.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import torch
import torch.distributed as dist
from rich.table import Table
from torch.utils.data import DataLoader as TorchDataLoader, Dataset

from counterpoise import Balance, DataLoader
from counterpoise.tools.console.reporting import emit

from .processes import cpu_s_below

CELLS = ((1_000, 16), (150_000, 16), (602_112, 16))
WAYS = ("torch", "direct")
# Of a pass, so that none takes much longer than a second or two.
MOST_SAMPLES, MOST_BYTES = 20_000, 1 << 30
# The first and the last part of an epoch are not counted: processes start and end.
EDGE = 8


class Copies(Dataset[torch.Tensor]):
    """Samples that are copies of one tensor."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.bytes = torch.from_numpy(np.random.default_rng(0).integers(0, 255, nbytes, np.uint8))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.bytes.clone()


@click.command("transports")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(workers: int, pairs: int, as_json: bool) -> None:
    """Compare processes that share a rank with torch's DataLoader.

    Example: make bench NAME=transports ARGS="--pairs 5 --json"
    """
    found = [
        {"bytes": nbytes, "batch": batch, "workers": workers}
        | dict(_compare(nbytes, batch, workers, pairs))
        for nbytes, batch in CELLS
    ]
    table = Table("bytes", "batch", "way", "samples/s", "CPU us a sample", box=None)
    for cell in found:
        for way in WAYS:
            shown = (f"{cell[way][name]:,.0f}" for name in ("samples_per_s", "cpu_us"))
            table.add_row(str(cell["bytes"]), str(cell["batch"]), way, *shown)
    emit({"cells": found}, as_json, table)


def _compare(nbytes: int, batch: int, workers: int, pairs: int) -> Iterator[tuple[str, Any]]:
    """Yield each way with the medians of its passes, which take turns."""
    passes: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(pairs):
        for way, of_way in passes.items():
            of_way.append(_one_pass(way, nbytes, batch, workers))
    for way, of_way in passes.items():
        yield way, {name: statistics.median(each[name] for each in of_way) for name in of_way[0]}


def _one_pass(way: str, nbytes: int, batch: int, workers: int) -> dict[str, float]:
    """Run an epoch in new processes; return what the first of them says."""
    world = 1 if way == "torch" else 2
    # They meet as under torchrun: at a store of the process that starts them.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": str(world),
    }  # fmt: skip
    words = [sys.executable, "-P", "-m", __name__, way, str(nbytes), str(batch), str(workers)]
    processes = [
        subprocess.Popen(
            words, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(world)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a process of the pass {way!r} of {nbytes} bytes has failed")
    parts = [json.loads(each) for each in said]
    got = sum(part["samples"] for part in parts)
    return {
        "samples_per_s": parts[0]["samples"] / parts[0]["seconds"],
        "cpu_us": 1e6 * sum(part["cpu_s"] for part in parts) / got,
    }


def _measure(way: str, nbytes: int, batch: int, workers: int) -> dict[str, float]:
    """Go through an epoch; return what it took, without its edges."""
    count = min(MOST_SAMPLES, MOST_BYTES // nbytes) // (4 * batch) * (4 * batch)
    data: Any = Copies(count, nbytes)
    given: Any = {"shuffle": True, "num_workers": workers}
    if way == "torch":
        loader: Any = TorchDataLoader(data, batch, **given)
    else:
        dist.init_process_group("gloo")
        loader = DataLoader(
            data, batch, **given, balance=Balance(grouping="fixed", accumulate=4),
            cost={"tokens": np.arange(count) % 97 + 1}, ranks={"tp": 2},
        )  # fmt: skip
    batches = count // batch
    begin, end, looks = batches // EDGE, batches - batches // EDGE, list[tuple[float, float]]()
    for number, _ in enumerate(loader):
        if number in (begin, end):
            below = sum(cpu_s_below(os.getpid()).values())
            looks.append((time.perf_counter(), time.process_time() + below))
    (began, before), (ended, after) = looks
    if dist.is_initialized():
        loader.close()
        dist.destroy_process_group()
    got = (end - begin) * batch
    return {"samples": got, "seconds": ended - began, "cpu_s": after - before}


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(_measure(name, *map(int, numbers))))
