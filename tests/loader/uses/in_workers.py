"""Uses that are about worker processes: what they see, and how they start and end."""

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.loader.uses.forks import in_child
from tests.loader.uses.kinds import Make, batches, use
from tests.loader.uses.samples import Deadly, InFile, Made, Numbers, Slow, worker_seen

SET_AT_RUN_TIME = {"offset": 0}


def _shifted(index: int) -> int:
    return index + SET_AT_RUN_TIME["offset"]


def _refuse_start(worker: int) -> None:
    raise OSError(f"worker {worker} has no disk")


@use("`get_worker_info()` in the workers")
def informed(make: Make) -> Any:
    # A balancer decides which worker takes a batch, so compare what a worker sees, not how often.
    rows = [row for rows in make(Made(worker_seen), num_workers=2, collate_fn=list) for row in rows]
    ids, counts, pids = (set(column) for column in zip(*rows, strict=True))
    return ids <= {0, 1}, counts, len(set(rows)) == len(ids) == len(pids), os.getpid() in pids


@use("`worker_init_fn` that sets the workers' CPU affinity")
def affinity(make: Make) -> Any:
    allowed = {min(os.sched_getaffinity(0))}
    dataset = Made(lambda _: len(os.sched_getaffinity(0)), 2)
    loader = make(dataset, num_workers=1, worker_init_fn=lambda _: os.sched_setaffinity(0, allowed))
    return batches(loader)


@use("`worker_init_fn` that raises")
def init_raises(make: Make) -> Any:
    return batches(make(Numbers(), num_workers=1, worker_init_fn=_refuse_start))


@use("`persistent_workers=True` over two epochs")
def persistent(make: Make) -> Any:
    loader = make(Numbers(), batch_size=3, num_workers=2, persistent_workers=True)
    return [batches(loader) for _ in range(2)]


@use("`prefetch_factor=1`")
def prefetch(make: Make) -> Any:
    return batches(make(Numbers(), batch_size=2, num_workers=2, prefetch_factor=1))


@use("`in_order=False`")
def without_order(make: Make) -> Any:
    loader = make(Numbers(), batch_size=2, num_workers=2, in_order=False)
    return sorted(number for batch in loader for number in batch.tolist())


@use("`timeout=` when a worker takes longer")
def timed_out(make: Make) -> Any:
    return batches(make(Slow(), num_workers=1, timeout=0.3))


@use("a worker that is killed by a signal")
def killed(make: Make) -> Any:
    # no tensors: a socket of a dead worker would raise something else, now and then
    return in_child(lambda: batches(make(Deadly(), num_workers=1, collate_fn=list)))()


@use("a lambda as `collate_fn`, a class defined in a function as dataset")
def local_objects(make: Make) -> Any:
    class Local(Numbers):
        pass

    return batches(make(Local(), batch_size=5, num_workers=1, collate_fn=lambda all_: sum(all_)))


@use("a dataset with an open file")
def open_file(make: Make) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        dataset = InFile(Path(folder, "bytes"))
        found = batches(make(dataset, batch_size=5, num_workers=1))
        dataset.file.close()
        return found


@use("state that the trainer set at run time, read in the workers")
def state_set_at_run_time(make: Make) -> Any:
    SET_AT_RUN_TIME["offset"] = 1000
    try:
        return batches(make(Made(_shifted), num_workers=1))
    finally:
        SET_AT_RUN_TIME["offset"] = 0


@use("a `multiprocessing.Value` that workers count in")
def shared_value(make: Make) -> Any:
    counter = multiprocessing.Value("i", 0)

    def count(index: int) -> int:
        with counter.get_lock():
            counter.value += 1
        return index

    loader = make(Made(count), num_workers=1)
    return batches(loader), counter.value


@use('`multiprocessing_context="spawn"`')
def spawned(make: Make) -> Any:
    return batches(make(Numbers(4), batch_size=2, num_workers=1, multiprocessing_context="spawn"))


@use("`torch.set_num_threads` and convolution in the trainer, then in a forked worker")
def convolved(make: Make) -> Any:
    def convolve(_: int) -> torch.Tensor:
        return torch.nn.functional.conv1d(torch.ones(1, 1, 2400), torch.ones(1, 1, 2)).sum()

    torch.set_num_threads(2)
    try:
        convolve(0)
        return batches(make(Made(convolve, 2), num_workers=1))
    finally:
        torch.set_num_threads(1)
