"""Lists the private names of torch that loaders of ours use, and its text for a killed worker.

torch has no public place between its sampler and its workers, so the iterators of `iterators.py`
are subclasses of torch's. tests/loader/plain/test_torch_names.py fails with a torch that renames
one of these.
"""

import signal
from typing import Any

import torch.autograd
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils.worker import _worker_loop
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

TorchInlineIterator = _SingleProcessDataLoaderIter
TorchExceptionWrapper = ExceptionWrapper  # carries an exception and its traceback to the trainer
TorchWorkersIterator = _MultiProcessingDataLoaderIter
child_reports: Any = signal_handling  # of which processes the end is reported
worker_loop = _worker_loop  # what a worker process does
# Whether a profile of this thread is being taken.
is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]

# _get_iterator is overridden; _iterator is set to None to end persistent workers; torch's iterators
# draw from _index_sampler.
LOADER_NAMES = ("_get_iterator", "_iterator", "_index_sampler")
# _workers are the processes; _base_seed is what they are seeded with; _rcvd_idx counts the tasks
# whose result was taken; _reset begins another iteration of persistent workers; _shutdown says that
# the workers were ended; through the queues tasks go to the workers and results come back;
# _next_data returns the next batch, which __next__ counts in _num_yielded. Where workers are
# replaced, _next_index gives the next task, _try_put_index gives it to a worker (see _task_info)
# under the number _send_idx; _try_get_data waits for results in _data_queue, of which _process_data
# makes batches; _workers_done_event and those after it are what a worker is started with.
WORKERS_NAMES = (
    *("_workers", "_base_seed", "_rcvd_idx", "_reset", "_shutdown", "_shutdown_workers"),
    *("_index_queues", "_worker_result_queue", "_next_data", "_num_yielded", "_next_index"),
    *("_try_put_index", "_task_info", "_send_idx", "_try_get_data", "_data_queue"),
    *("_process_data", "_worker_pids_set", "_pin_memory", "_workers_done_event", "_dataset"),
    *("_dataset_kind", "_auto_collation", "_collate_fn", "_drop_last", "_worker_init_fn"),
    *("_num_workers", "_persistent_workers", "_shared_seed"),
)
INLINE_NAMES = ("_base_seed",)


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
