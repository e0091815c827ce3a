"""The loop without balancing: seeds, streams, errors and ends of workers are torch's."""

import os
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise.loader import DataLoader
from tests.loader.plain import differential_data as data


@pytest.fixture(autouse=True)
def _few_cores():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more workers than cores
        yield


def both(dataset, epochs=1, **arguments):
    """What torch's loader yields, and ours."""
    found = []
    for kind in (torch_data.DataLoader, DataLoader):
        generator = torch.Generator().manual_seed(5)
        loader = kind(dataset, generator=generator, **arguments)
        found.append([list(loader) for _ in range(epochs)])
    return found


def flat(value):
    """Every number in a nested batch."""
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    return [number for part in value for number in flat(part)]


def shuffled_pipe():
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(list(range(20))).shuffle().sharding_filter()


STAYS = {"persistent_workers": True}
# a data set, and how it is read with two workers or three
READ = [
    *((lambda: data.Noise(31), {"batch_size": 3, "shuffle": True, "num_workers": 3, **more})
      for more in ({}, STAYS)),
    *((lambda lengths=lengths: data.Stream(lengths), {"batch_size": 2, "num_workers": 3, **more})
      for lengths, more in (((5, 5, 5), STAYS), ((9, 0, 4), {}), ((1, 20, 2), STAYS))),
    (lambda: data.Stream((3, 8)), {"batch_size": None}),
    (lambda: data.Stream((3, 8)), {"batch_size": 4, "drop_last": True}),
    (shuffled_pipe, {"batch_size": 3, "shuffle": True}),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "given"), READ)
def test_batches_are_torchs(dataset, given):
    theirs, ours = both(dataset(), 2, **{"num_workers": 2, **given})
    for of_ours, of_theirs in zip(ours, theirs, strict=True):
        assert list(map(flat, of_ours)) == list(map(flat, of_theirs))


def test_an_error_in_a_stream_comes_in_its_place():
    iterator = iter(DataLoader(data.Stream((4,), broken=2), batch_size=2, num_workers=1))
    assert next(iterator).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(KeyError, match=r"Caught KeyError in DataLoader worker process 0"):
        next(iterator)


def test_the_init_function_runs_in_every_worker():
    theirs, ours = both(data.Noise(8), num_workers=2, worker_init_fn=data.seed_by_number)
    assert flat([batch[1:3] for batch in ours[0]]) == flat([batch[1:3] for batch in theirs[0]])


def test_batches_may_be_written_to():
    for batch in DataLoader(data.Samples(8, "tensor"), 2, num_workers=1):
        batch += 1
        batch.add_(1)


def test_nested_tensors_come_through():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    theirs, ours = both([nested, nested], batch_size=None, num_workers=1)
    assert [part.tolist() for part in ours[0][1].unbind()] == [[1, 1], [1, 1, 1]]
    assert [part.tolist() for part in theirs[0][1].unbind()] == [[1, 1], [1, 1, 1]]


def test_out_of_order_a_slow_batch_does_not_hold_the_others_up():
    gated = data.Gated(6)
    loader = DataLoader(gated, num_workers=2, in_order=False, prefetch_factor=2)
    iterator = iter(loader)
    early = [next(iterator).item() for _ in range(3)]
    assert 0 not in early
    gated.gate.set()
    assert sorted(early + [batch.item() for batch in iterator]) == list(range(6))


def test_get_worker_info_shows_the_users_data_set():
    class Named(data.Stream):
        name = "mine"

    def name_of(_):
        return torch_data.get_worker_info().dataset.name

    loader = DataLoader(Named((1,)), num_workers=1, collate_fn=name_of)
    assert list(loader) == ["mine"]


def workers_of(iterator):
    return [worker.pid for worker in iterator._workers]


def gone(pids):
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


def until(condition):
    bell = threading.Event()
    for _ in range(3000):
        if condition():
            return True
        bell.wait(0.01)
    return False


def test_the_workers_end_with_the_epoch():
    loader = DataLoader(data.Samples(8, "integer"), num_workers=2)
    iterator = iter(loader)
    pids = workers_of(iterator)
    assert len(pids) == 2
    assert not gone(pids)
    assert len(list(iterator)) == 8
    assert until(lambda: gone(pids))
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_workers_end_when_the_loop_is_left():
    for _ in (iterator := iter(DataLoader(data.Samples(80, "integer"), num_workers=2))):
        pids = workers_of(iterator)
        break
    del iterator
    assert until(lambda: gone(pids))


def kill_and_iterate(pid, loader):
    os.kill(pid, signal.SIGKILL)  # torch may raise right behind this
    list(loader)


def test_persistent_workers_stay_and_end_with_the_loader():
    loader = DataLoader(data.Samples(8, "integer"), num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    pids = workers_of(iterator)
    assert [len(list(loader)) for _ in range(3)] == [8, 8, 8]
    assert not gone(pids)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        kill_and_iterate(pids[-1], loader)
    del loader, iterator
    assert until(lambda: gone(pids))
