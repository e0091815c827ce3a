"""One party of `make bench NAME=local`: a loader in a process of its own, of whichever checkout.

It imports nothing of this package, since the other party's checkout has none: only counterpoise,
as PYTHONPATH says. A line of standard input is a round; a line of JSON on standard output is what
it took.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

import counterpoise as cp

SHARDS = "shards"


class Tensors(Dataset[Any]):
    """Tensors of a size."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.whole = count, torch.zeros(nbytes, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.whole.clone()
        sample[0], sample[1] = index & 255, index >> 8 & 255
        return sample, index


def cpu_s() -> float:
    """Return the CPU seconds of this process and all below it."""
    found: dict[int, tuple[int, float]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = int(fields[11]) + int(fields[12])
            found[int(each.name)] = int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")
    own, todo, total = set[int](), [os.getpid()], 0.0
    while todo:
        pid = todo.pop()
        if pid in own:
            continue
        own.add(pid)
        total += found.get(pid, (0, 0.0))[1]
        todo += [child for child, (parent, _) in found.items() if parent == pid]
    return total


def costs_of(count: int) -> Any:
    """Return lognormal costs, as of the tokens of instructions."""
    drawn = np.random.default_rng(0).lognormal(5.5, 0.8, count)
    return np.clip(drawn.astype(int), 16, 1500)


def loader_of(kind: str, what: str, count: int, size: int, ranks: int) -> Any:
    """Return a loader: "balanced", or "plain" of the same data. `what`: bytes, or SHARDS."""
    workers = max(1, 2 // ranks)
    given: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "shuffle": True}
    if what == SHARDS:
        whole = cp.TarDataset(os.environ["SHARDS"], cp.VisionLanguage())
        chosen = [n for n in range(len(whole)) if whole.probe(n).cost["tiles"] <= 8][:count]
        data: Any = Subset(whole, chosen)  # type: ignore[arg-type]
        names = ("tiles", "tokens", "label_tokens")
        costs = {n: np.array([whole.probe(k).cost[n] for k in chosen]) for n in names}
        balance = cp.Balance(accumulate=4, samples_per_step=4 * size, layout="packed")
    else:
        data, costs = Tensors(count, int(what)), {"tokens": costs_of(count)}
        balance = cp.Balance(accumulate=4, samples_per_step=4 * size * ranks)
    if kind == "plain":
        return cp.DataLoader(data, size, **given)
    return cp.DataLoader(data, balance=balance, cost=costs, **given)


def serve(rank: int, ranks: int, kind: str, what: str, count: int, size: int) -> None:
    """Run rounds as lines of standard input say, on all ranks."""
    torch.set_num_threads(1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    loader, epoch = loader_of(kind, what, count, size, ranks), 0
    while True:
        go = [sys.stdin.readline() if rank == 0 else ""]
        if ranks > 1:
            torch.distributed.broadcast_object_list(go)
        if not go[0]:
            break
        epoch += 1
        if kind == "balanced":
            loader.set_epoch(epoch)
        before, main = cpu_s(), time.thread_time()
        since = time.perf_counter()
        for _ in loader:
            pass
        if ranks > 1:
            torch.distributed.barrier()
        seconds = time.perf_counter() - since
        used = {
            "samples_s": count / seconds,
            "cpu_us": 1e6 * (cpu_s() - before) / count * (ranks if ranks > 1 else 1),
            "main_us": 1e6 * (time.thread_time() - main) / count * ranks,
        }
        if rank == 0:
            print(json.dumps(used), flush=True)
    loader.close()
    os._exit(0)


if __name__ == "__main__":
    kind, what = sys.argv[1:3]
    count, size, ranks = map(int, sys.argv[3:6])
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[6])
        for rank in range(1, ranks):
            if os.fork() == 0:
                sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
                serve(rank, ranks, kind, what, count, size)
    serve(0, ranks, kind, what, count, size)
