"""worker_init_fn reaches the data set that samples are loaded from, by get_worker_info()."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info

from counterpoise.loader import Balance, DataLoader
from counterpoise.workers.sources.interface import Probe


class Shifted:
    """Numbers, and what worker_init_fn adds to them."""

    offset = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index + self.offset


class Probed(Shifted):
    """The same, with costs of its own."""

    def probe(self, index: int) -> Probe:
        return Probe(str(index), {"tokens": 1 + index % 3 + self.offset})


class Hung(Shifted):
    """Sample 5 never comes."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            threading.Event().wait()
        return index


class Deadly(Shifted):
    """Sample 5 ends the process that loads it."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class ListsOnly(Dataset[int]):
    """Samples that come in lists only, over torch's class, whose __getitem__ raises."""

    def __len__(self) -> int:
        return 8

    def __getitems__(self, indexes: list[int]) -> list[int]:
        return indexes


def shift(_number: int) -> None:
    """Shift the data set, and what it is made of."""
    info: Any = get_worker_info()
    assert (info.id, info.num_workers) == (0, 1)
    parts = [info.dataset, getattr(info.dataset, "dataset", None)]
    for each in [*parts, *getattr(info.dataset, "datasets", ())]:
        if isinstance(each, Shifted):
            each.offset = 1000


def swap(_number: int) -> None:
    """Put another data set into a Subset."""
    info: Any = get_worker_info()
    info.dataset.dataset = Shifted()
    info.dataset.dataset.offset = 1000


def numbers(loader: DataLoader) -> list[int]:
    return sorted(int(each) for batch in loader for each in batch)


def make(dataset: Any, **changes: Any) -> DataLoader:
    given = {"batch_size": 2, "num_workers": 1, "shuffle": False, "balance": "fixed", **changes}
    return DataLoader(dataset, **given)


@pytest.mark.parametrize("balance", [None, "fixed", "auto"])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_it_sets_is_there_in_each_epoch(balance: Any, persistent: bool) -> None:
    loader = make(Shifted(), balance=balance, persistent_workers=persistent, worker_init_fn=shift)
    assert numbers(loader) == numbers(loader) == list(range(1000, 1008))
    loader.close()


@pytest.mark.parametrize("balance", ["fixed", "auto"])
def test_it_reaches_what_a_data_set_is_made_of(balance: Any) -> None:
    shifted: Any = Shifted()
    probed: Any = Probed()
    cases: list[Any] = [
        (Subset(shifted, range(8)), shift), (Subset(shifted, range(8)), swap),
        (ConcatDataset([shifted]), shift), (Subset(probed, range(8)), shift),
    ]  # fmt: skip
    for dataset, init in cases:
        loader = make(dataset, balance=balance, worker_init_fn=init)
        assert numbers(loader) == list(range(1000, 1008))


@pytest.mark.long
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("balance", ["fixed", "auto"])
def test_so_it_is_in_processes_that_start_clean(context: str, balance: Any) -> None:
    probed: Any = Probed()
    for dataset in (probed, Subset(probed, range(8))):
        loader = make(
            dataset, balance=balance, worker_init_fn=shift, multiprocessing_context=context
        )
        assert numbers(loader) == list(range(1000, 1008))


def note_seed(_number: int) -> None:
    info: Any = get_worker_info()
    info.dataset.offset = info.seed % 1_000_003


def test_seeds_of_workers_differ_between_epochs_and_come_again_in_another_run() -> None:
    first, again = ([numbers(each) for _ in range(2)] for each in (seeded(), seeded()))
    assert first == again
    assert first[0] != first[1]


def seeded() -> DataLoader:
    return make(Shifted(), worker_init_fn=note_seed)


# torch waits 5 s for a worker that hangs
@pytest.mark.parametrize("balance", [pytest.param("fixed", marks=pytest.mark.long), "auto"])
def test_a_timeout_holds_and_names_the_sample_that_hangs(balance: Any) -> None:
    loader = make(Hung(), balance=balance, on_error="skip", timeout=1.0)
    with pytest.raises(TimeoutError, match=r"no batch within 1 s: .* (at|on) sample '?5"):
        numbers(loader)
    loader.close()


def test_a_first_sample_that_kills_is_named_and_a_hole(caplog: pytest.LogCaptureFixture) -> None:
    balance = Balance("auto", work="padded")
    loader = make(Deadly(), balance=balance, on_error="skip")
    assert numbers(loader) == [0, 1, 2, 3, 4, 6, 7]
    assert loader.left_out == 1
    assert "was ended by SIGKILL, and is at sample '5'" in caplog.text
    loader.close()
    with pytest.raises(ValueError, match="was ended by SIGKILL, and is at sample '5'"):
        numbers(make(Deadly(), balance=balance))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_come_in_lists_only_are_taken(workers: int) -> None:
    for dataset in (ListsOnly(), Subset(ListsOnly(), range(8))):
        for balance in (None, "fixed", "auto"):
            for on_error in ("raise", "skip"):
                loader = make(dataset, balance=balance, on_error=on_error, num_workers=workers)
                assert numbers(loader) == list(range(8))


STRICT = """
import gc, sys
from counterpoise.loader import Balance, DataLoader
for balance in (None, "fixed", "auto"):
    for workers, on_error in ((0, "raise"), (1, "raise"), (1, "skip")):
        given = dict(num_workers=workers, on_error=on_error, balance=balance, shuffle=False)
        loader = DataLoader(list(range(8)), batch_size=2, **given)
        assert len(list(loader)) == len(list(loader)) == 4
        del loader
        gc.collect()
"""


def test_nothing_warns_in_a_strict_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STRICT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Warning" not in done.stderr
