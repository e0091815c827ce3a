"""worker_restarts without balance: the batches stay, and only the deadly sample is named."""

import logging
import os
import signal
from functools import partial
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from counterpoise import DataLoader, OnError
from counterpoise.loader import LoaderError
from counterpoise.workers.arena import memory
from tests.loader.plain.stateful_data import Drawing
from tests.loader.restarts_data import COUNT, Deadly, Hanging, Killer


def loader(data: Any, batch: int | None = 4, **given: Any) -> DataLoader[Any, Any]:
    return DataLoader(data, batch, num_workers=2, **given)


def process_ids(iterator: Any) -> list[int]:
    return [worker.pid for worker in iterator._workers]


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_the_same_when_workers_are_killed(persistent: bool) -> None:
    made = loader(
        Deadly(load_s=0.002), on_error=OnError(worker_restarts=9), persistent_workers=persistent
    )
    for epoch in range(2):
        iterator: Any = iter(made)
        killer = Killer(partial(process_ids, iterator), 3, epoch)
        killer.start()
        found = [int(row[0]) for batch in iterator for row in batch]
        killer.join()
        assert found == list(range(COUNT))


def test_workers_that_die_between_epochs_are_replaced() -> None:
    made = loader(Deadly(), on_error=OnError(worker_restarts=9), persistent_workers=True)
    for _ in range(3):
        iterator: Any = iter(made)
        assert [int(row[0]) for batch in iterator for row in batch] == list(range(COUNT))
        for pid in process_ids(iterator):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("given", [{}, {"batch": 1}, {"in_order": False}, {"batch": None}])
def test_with_skip_the_sample_that_kills_three_is_left_out(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = loader(Deadly(bad=17), on_error="skip", **given)
    batches = list(made)
    rows = batches if given == {"batch": None} else [row for batch in batches for row in batch]
    assert sorted(int(row[0]) for row in rows) == [n for n in range(COUNT) if n != 17]
    assert made.left_out == 1
    deaths = [r for r in caplog.records if r.levelno == logging.WARNING and "died" in r.message]
    assert ["sample 17" in each.message for each in deaths] == [True] * 3


def test_without_it_the_third_death_ends_the_loop_and_names_the_sample() -> None:
    with pytest.raises(LoaderError, match="'17': 3 worker processes died"):
        list(loader(Deadly(bad=17), on_error=OnError(worker_restarts=5)))


class Together(Deadly):
    """Loads the samples of a batch at once, as Hugging Face's data sets do."""

    def __getitems__(self, indexes: list[int]) -> list[Any]:
        return [self[index] for index in indexes]


def test_where_samples_are_loaded_together_the_one_that_kills_is_found_one_by_one() -> None:
    made = loader(Together(bad=17), on_error="skip")
    rows = [int(row[0]) for batch in made for row in batch]
    assert sorted(rows) == [n for n in range(COUNT) if n != 17]
    assert made.left_out == 1
    with pytest.raises(LoaderError, match="'17': 3 worker processes died"):
        list(loader(Together(bad=17), on_error=OnError(worker_restarts=5)))


@pytest.mark.parametrize("restarts", [0, 1])
def test_too_few_restarts_end_the_loop_as_torch_does(restarts: int) -> None:
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        list(loader(Deadly(bad=17), on_error=OnError(worker_restarts=restarts)))


class Stream(IterableDataset[int]):
    """Numbers."""

    def __iter__(self) -> Any:
        return iter(range(4))


@pytest.mark.parametrize("data", [Stream(), Drawing(4)])
def test_what_cannot_go_on_elsewhere_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="worker_restarts=1, and a worker of a"):
        loader(data, on_error=OnError(worker_restarts=1))


def test_what_needs_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_memory_file_fault", lambda: "there are none")
    with pytest.raises(ValueError, match=r"worker_restarts=1 needs shared memory.*there are none"):
        iter(loader(Deadly(), on_error=OnError(worker_restarts=1)))


@pytest.mark.parametrize("restarts", [0, 1])
def test_who_hangs_and_on_which_samples_is_logged(
    restarts: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = Hanging()
    iterator: Any = iter(
        DataLoader(data, 2, num_workers=2, on_error=OnError(worker_restarts=restarts), timeout=0.5)
    )
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    line = caplog.records[-1].getMessage()
    worker, _, pid = line.partition("that of worker ")[2].partition(")")[0].partition(" (pid ")
    assert int(pid) == process_ids(iterator)[int(worker)]
    assert line.endswith("which works on samples [4, 5]")
    data.go_on.set()
