"""Lists the private names of torch that loaders of ours use, and its text for a killed worker.

torch has no public place between its sampler and its workers, so the iterators of `iterators.py`
are subclasses of torch's. tests/loader/plain/test_torch_names.py lists the private attributes that
they use, and fails with a torch that renames one.
"""

import inspect
import signal
from typing import Any

import torch.autograd
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling, worker as torch_worker
from torch.utils.data._utils.worker import _ResumeIteration, _worker_loop
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

TorchInlineIterator = _SingleProcessDataLoaderIter
TorchExceptionWrapper = ExceptionWrapper  # carries an exception and its traceback to the trainer
TorchWorkersIterator = _MultiProcessingDataLoaderIter
child_reports: Any = signal_handling  # of which processes the end is reported
worker_loop = _worker_loop  # what a worker process does
# torch 2.15 and later give it the data set in a list, from which it takes it.
holds_dataset = "dataset_holder" in inspect.signature(_worker_loop).parameters
ResumeIteration = _ResumeIteration  # a worker's answer that it goes on to the next iteration
# Whether a profile of this thread is being taken.
is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


def begin_as_worker(dataset: Any, number: int, workers: int, seed: int) -> None:
    """Make get_worker_info() of this process say what it says in worker `number` of `workers`."""
    info: Any = torch_worker.WorkerInfo
    torch_worker._worker_info = info(id=number, num_workers=workers, seed=seed, dataset=dataset)


def describe_exit(workers: list[Any], ended: list[Any]) -> str:
    """Return torch's text for workers that have ended, some of them perhaps by a signal."""
    pids = ", ".join(str(worker.pid) for worker in ended)
    unexpected = f"DataLoader worker (pid(s) {pids}) exited unexpectedly"
    return killed_worker(workers) or unexpected


def killed_worker(workers: list[Any]) -> str | None:
    """Return torch's text for the first of `workers` that a signal has killed, None without one.

    torch learns of it by SIGCHLD: in the main thread, and of children only. Workers from our fork
    server are none, and a loader may be iterated in another thread.
    """
    for worker in workers:
        code = worker.exitcode
        if code is not None and code < 0:
            name = signal.strsignal(-code) or str(-code)
            return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}. "
    return None
