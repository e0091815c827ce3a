"""The processes behind a balanced loader: stalls, deaths, several loaders, forked copies."""

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as torch_data

from counterpoise import OnError, Ranks
from counterpoise.balancer.server.embedded import find_directory
from counterpoise.loader import Balance, DataLoader, LoaderError
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

pytestmark = pytest.mark.slow

COUNT = 40
LIMIT_S = 20


def make(dataset=None, **changes):
    given = {"grouping": "isf", "budgets": {"tokens": 120}, "accumulate": "auto", "seed": 3}
    given |= {
        "samples_per_step": 8,
        "ranks": Ranks(virtual=2),
        "layout": "padded",
        "num_workers": 2,
    }
    given |= {"shuffle": True}
    data = made.Augmented(COUNT) if dataset is None else dataset
    return balanced_loader(data, **{**given, **changes})


def digests(batches):
    return [made.digest(batch) for batch in batches]


@pytest.fixture(scope="module")
def expected():
    return digests(make(num_workers=0))


def workers_of(loader):
    """Return the process ids of a local loop's workers, () where it has none."""
    tasks = loader._balanced._connection._tasks
    return () if tasks is None else tuple(worker.pid for worker in tasks._workers)


def processes_of(loader):
    """Return the processes of a loader that has a balancer."""
    return loader._balanced._connection._processes


def pool_of(loader):
    return processes_of(loader).pool


def children(pid):
    """Return the names of a process' children, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == pid:
            found[int(path.parent.name)] = name
    return found


def wait_until(happened):
    deadline, bell = time.monotonic() + LIMIT_S, threading.Event()
    while not happened():
        assert time.monotonic() < deadline
        bell.wait(0.02)


def has_ended(pid):
    """Whether a process has ended, be it that nobody has asked for its status."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_wait_that_took_too_long_can_be_gone_on_with(tmp_path, expected):
    gate = tmp_path / "gate"
    loader = make(made.Waiting(COUNT, 17, str(gate)), timeout=0.3)
    iterator, found = iter(loader), []
    waits = 0
    while len(found) < len(expected):
        try:
            found += digests([next(iterator)])
        except TimeoutError as error:
            assert str(error).startswith("no batch within 0.3 s: waits for ")  # noqa: PT017
            waits += 1
            gate.touch()
    assert waits > 0
    assert found == expected
    assert next(iterator, None) is None
    loader.close()


def test_a_loader_that_is_dropped_ends_its_processes():
    loader = make()
    iterator = iter(loader)
    next(iterator)
    workers = workers_of(loader)
    assert len(workers) == 2
    assert {*workers} <= {*children(os.getpid())}
    del loader, iterator
    gc.collect()
    wait_until(lambda: all(map(has_ended, workers)))


def test_a_loop_has_its_workers_and_no_other_process():
    before = {*children(os.getpid())}
    loader = make()
    iterator = iter(loader)
    next(iterator)
    assert {*children(os.getpid())} - before == {*workers_of(loader)}
    loader.close()


def test_a_worker_that_is_killed_ends_the_loop_as_torchs_does_and_it_can_be_used_again(expected):
    data = made.Augmented(600)  # more than are loaded ahead
    loader = make(data)
    iterator = iter(loader)
    next(iterator)
    ledger, killed = loader.state_dict(), workers_of(loader)[0]
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid.*{killed}\)") as raised:
        list(iterator)
    assert not isinstance(raised.value, LoaderError)
    rest = make(data, num_workers=0)
    for each in (loader, rest):
        each.load_state_dict(ledger)
    assert digests(loader) == digests(rest)
    loader.close()


@pytest.mark.usefixtures("through_balancer")
def test_a_balancer_that_is_killed_is_an_error_and_the_loader_can_be_used_again(monkeypatch):
    data = made.Augmented(600)  # more than are decoded ahead
    loader = make(data)
    iterator = iter(loader)
    next(iterator)
    balancer = processes_of(loader).balancer.pid
    os.kill(balancer, signal.SIGKILL)
    wait_until(lambda: has_ended(balancer))
    with pytest.raises(LoaderError, match="the balancer"):
        list(iterator)
    found = digests(loader)
    loader.close()
    monkeypatch.undo()  # the other loads by itself
    other = make(data, num_workers=0)
    other.set_epoch(1)  # the first was left
    assert found == digests(other)


@pytest.mark.usefixtures("through_balancer")
def test_a_worker_of_a_shared_rank_that_is_killed_is_started_again(monkeypatch):
    data = made.Augmented(600)
    loader = make(data)
    iterator = iter(loader)
    found = digests([next(iterator)])
    for pid in pool_of(loader).pids:
        os.kill(pid, signal.SIGKILL)
    found += digests(iterator)
    directory = find_directory(processes_of(loader).balancer.endpoint)
    loader.close()
    assert not Path(directory).exists()
    monkeypatch.undo()  # the other loads by itself
    assert found == digests(make(data, num_workers=0))


class Tagged:
    """Samples with a tag that the trainer may change, and the process that loaded them."""

    tag = 0

    def __len__(self):
        return 600  # more than are decoded ahead

    def __getitem__(self, index):
        return self.tag, os.getpid()


def test_a_worker_that_is_started_again_has_the_data_as_they_were_at_iter():
    data = Tagged()
    loader = DataLoader(
        data, batch_size=2, num_workers=1, prefetch_factor=1, shuffle=False,
        on_error=OnError(worker_restarts=1),
        balance=Balance(grouping="fixed"), collate_fn=list,
    )  # fmt: skip
    iterator = iter(loader)
    came = next(iterator)
    data.tag = 1
    os.kill(came[0][1], signal.SIGKILL)
    came += [sample for batch in iterator for sample in batch]
    assert {tag for tag, _ in came} == {0}
    assert len({pid for _, pid in came}) == 2
    assert {tag for batch in loader for tag, _ in batch} == {1}
    loader.close()


def test_workers_end_with_their_iterator_and_persistent_ones_with_the_loader(expected):
    loader, kept = make(), make(persistent_workers=True)
    assert digests(kept) == digests(loader) == expected
    assert workers_of(loader) == ()
    workers = workers_of(kept)
    assert len(workers) == 2
    iterator = iter(loader)
    next(iterator)
    assert len(workers_of(loader)) == 2
    del iterator
    assert workers_of(loader) == ()
    kept.load_state_dict(make().state_dict())
    loader.load_state_dict(make().state_dict())
    assert digests(kept) == digests(loader) == expected
    assert workers_of(kept) == workers
    loader.close()
    kept.close()
    wait_until(lambda: all(map(has_ended, workers)))


def test_an_iterator_outlives_the_thread_that_made_it(expected):
    loader, iterators = make(), []
    thread = threading.Thread(target=lambda: iterators.append(iter(loader)))
    thread.start()
    thread.join()
    assert digests(iterators[0]) == expected
    loader.close()


def test_torchs_own_workers_end_by_themselves_beside_a_balanced_loader(expected):
    # torch waits 5 s for each of its workers, and kills those that hang on what they inherited
    loader, kept = make(), make(persistent_workers=True)
    assert digests(loader) == digests(kept) == expected
    theirs: Any = torch_data.DataLoader([*range(6)], num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    iterator: Any = iter(theirs)
    assert len(list(iterator)) == 6
    workers = iterator._workers
    del iterator, theirs
    assert [worker.exitcode for worker in workers] == [0, 0]
    kept.set_epoch(0)
    assert digests(kept) == expected
    kept.close()
