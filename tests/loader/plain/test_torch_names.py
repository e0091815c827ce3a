"""The private names of torch that plain loaders use exist, and no others are used."""

import ast

import torch
import torch.utils.data as torch_data

from counterpoise.loader.plain import torch_names
from tests.imports import ROOT

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


def test_they_exist() -> None:
    data = torch_data.TensorDataset(torch.arange(2))
    loader = torch_data.DataLoader(data, num_workers=1)
    workers, inline = iter(loader), iter(torch_data.DataLoader(data))
    assert isinstance(workers, torch_names.TorchWorkersIterator)
    assert isinstance(inline, torch_names.TorchInlineIterator)
    assert all(hasattr(loader, name) for name in LOADER_NAMES)
    assert all(hasattr(workers, name) for name in WORKERS_NAMES)
    assert all(hasattr(inline, name) for name in INLINE_NAMES)


def test_nothing_else_of_ours_imports_a_private_name_of_torchs_loader() -> None:
    for path in (ROOT / "loader" / "plain").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                private = [each.name for each in node.names if each.name.startswith("_")]
                assert not private or path.name == "torch_names.py", (path, private)
