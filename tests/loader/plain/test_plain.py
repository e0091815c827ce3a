"""The loop without balancing: what torch's workers promise, ours keep, and more about their end."""

import math
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    DecodeDone,
    EpochPosition,
    Lease,
    RankHello,
    RequestBatch,
    StartRun,
    SubmitTask,
    WorkerHello,
    WorkerReady,
)
from counterpoise.loader import DataLoader
from counterpoise.loader.plain import PLAIN_JOB
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


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_have_torchs_seeds(persistent):
    theirs, ours = both(
        data.Noise(31), 2, batch_size=3, shuffle=True, num_workers=3, persistent_workers=persistent
    )
    assert flat(ours) == flat(theirs)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (9, 0, 4), (0, 0, 0), (1, 20, 2)])
def test_streams_are_read_in_turns(lengths, persistent):
    theirs, ours = both(
        data.Stream(lengths), 2, batch_size=2, num_workers=3, persistent_workers=persistent
    )
    assert [[batch.tolist() for batch in epoch] for epoch in ours] == [
        [batch.tolist() for batch in epoch] for epoch in theirs
    ]


def test_streams_without_batches_and_with_drop_last():
    assert flat(both(data.Stream((3, 8)), batch_size=None, num_workers=2)[1]) == flat(
        both(data.Stream((3, 8)), batch_size=None, num_workers=2)[0]
    )
    theirs, ours = both(data.Stream((3, 8)), batch_size=4, drop_last=True, num_workers=2)
    assert flat(ours) == flat(theirs)


def test_an_error_in_a_stream_comes_in_its_place():
    iterator = iter(DataLoader(data.Stream((4,), broken=2), batch_size=2, num_workers=1))
    assert next(iterator).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(KeyError, match=r"Caught KeyError in DataLoader worker process 0"):
        next(iterator)


def test_the_init_function_runs_in_every_worker():
    theirs, ours = both(data.Noise(8), num_workers=2, worker_init_fn=data.seed_by_number)
    assert flat([batch[1:3] for batch in ours[0]]) == flat([batch[1:3] for batch in theirs[0]])


def test_an_error_in_the_init_function_is_raised():
    loader = DataLoader(data.Noise(8), num_workers=2, worker_init_fn=data.refuse_worker_one)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="worker 1 has no disk"):
        next(iterator)


def test_datapipes_are_shuffled_and_shared_out_as_torch_does():
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(list(range(20))).shuffle().sharding_filter()
    theirs, ours = both(pipe, 2, batch_size=3, num_workers=2, shuffle=True)
    assert flat(ours) == flat(theirs)
    assert sorted(flat(ours[0])) == list(range(20))


def test_without_order_every_sample_still_comes_once():
    loader = DataLoader(data.Samples(30, "integer"), 4, num_workers=3, in_order=False)
    assert sorted(flat(list(loader))) == list(range(30))


def test_an_unfinished_epoch_can_be_left_and_started_again():
    loader = DataLoader(
        data.Samples(40, "integer"), 2, num_workers=2, persistent_workers=True, prefetch_factor=4
    )
    for _ in range(3):
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert len(list(loader)) == 20


def test_batches_may_be_written_to():
    for batch in DataLoader(data.Samples(8, "tensor"), 2, num_workers=1):
        batch += 1
        batch.add_(1)


@pytest.mark.filterwarnings("error")
def test_large_batches_are_used_where_they_arrived():
    loader = DataLoader(data.Large(), batch_size=2, num_workers=1)
    first, second = loader
    assert first.shape == second.shape == (2, 500, 500)
    first.fill_(3)
    assert second.sum() == 0


def test_torchs_own_workers_are_never_used(monkeypatch):
    def refuse(*_):
        raise AssertionError("torch's iterator was made")

    monkeypatch.setattr(torch_data.dataloader, "_MultiProcessingDataLoaderIter", refuse)
    assert len(list(DataLoader(data.Samples(8, "integer"), 2, num_workers=2))) == 4


def test_a_slow_batch_runs_into_the_timeout():
    loader = DataLoader(data.Stuck(), num_workers=1, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iter(loader))


def test_a_worker_that_says_nothing_for_long_is_not_replaced():
    coordinator = Coordinator(PLAIN_JOB, heartbeat_timeout_s=math.inf)
    hello = WorkerHello("here/1/0", 0, "here", 0)
    coordinator.handle(b"worker", hello, now=0.0)
    coordinator.handle(b"worker", WorkerReady(0, "batches"), now=0.0)
    coordinator.handle(b"rank", RankHello((0,), to_json(PLAIN_JOB)), now=0.0)
    coordinator.handle(b"rank", StartRun(0, 0, EpochPosition(0, 0, 0, 0)), now=0.0)
    granted = coordinator.handle(b"rank", SubmitTask(0, 0, 0, b"task"), now=0.0)
    assert [type(effect.message) for effect in granted] == [Lease]
    later = [effect for now in range(1, 10_000, 7) for effect in coordinator.tick(float(now))]
    assert Lease not in {type(effect.message) for effect in later}
    coordinator.handle(b"rank", RequestBatch(0, 0, 0, 0), now=10_000.0)
    lease = granted[0].message.lease
    done = DecodeDone(lease, 0, "0", (), b"")
    answers = coordinator.handle(b"worker", done, [b"batch"], 5, now=10_000.0)
    assert [effect.payloads for effect in answers if effect.peer == b"rank"] == [(b"batch",)]


@pytest.mark.parametrize("context", [None, "fork"])
def test_a_worker_that_dies_is_an_error(context):
    loader = DataLoader(data.Deadly(), num_workers=2, multiprocessing_context=context)
    with pytest.raises(
        RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"
    ):
        list(loader)


def test_what_cannot_be_pickled_needs_a_fork():
    factor = 3
    collate = lambda samples: [factor * sample for sample in samples]  # noqa: E731
    dataset = data.Samples(4, "integer")
    with pytest.raises(TypeError, match="multiprocessing_context='fork'"):
        iter(DataLoader(dataset, 2, num_workers=1, collate_fn=collate))
    loader = DataLoader(
        dataset, 2, num_workers=1, collate_fn=collate, multiprocessing_context="fork"
    )
    assert list(loader) == [[0, 3], [6, 9]]


def test_a_batch_that_cannot_be_pickled_is_an_error():
    loader = DataLoader(data.Samples(4, "integer"), 2, num_workers=1, collate_fn=data.make_lock)
    with pytest.raises(TypeError, match="cannot pickle"):
        next(iter(loader))


def workers_of(iterator):
    return iterator._pool.pids


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
    assert len(pids) == 3
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


def test_persistent_workers_stay_and_end_with_the_loader():
    loader = DataLoader(data.Samples(8, "integer"), num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    pids = workers_of(iterator)
    assert [len(list(loader)) for _ in range(3)] == [8, 8, 8]
    assert not gone(pids)
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)
    del loader, iterator
    assert until(lambda: gone(pids))
