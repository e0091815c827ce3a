"""The arena under real workers: torch's batches, whatever is done with them, and nothing left."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data

from counterpoise import DataLoader
from counterpoise.workers.arena import memory, views as arena_views

SIZE = 20_000  # floats: larger than what is copied


class Pictures(torch_data.Dataset[Any]):
    """Samples with a large tensor, a small one and a name."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixels": torch.full((SIZE,), float(index)), "label": index, "name": f"n{index}"}


def mapped_slots() -> int:
    """Return the number of arena mappings in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:counterpoise")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that a test leaves no mapping and no view."""
    gc.collect()
    slots, views = mapped_slots(), len(arena_views._alive)
    yield
    gc.collect()
    assert (mapped_slots(), len(arena_views._alive)) == (slots, views)


def check(batch: dict[str, Any], first: int) -> None:
    """Check a batch of four samples in the data's order."""
    assert batch["label"].tolist() == list(range(first, first + 4))
    assert batch["name"] == [f"n{n}" for n in range(first, first + 4)]
    for row, value in zip(batch["pixels"], batch["label"].tolist(), strict=True):
        assert row.eq(value).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_that_are_all_kept_stay_as_they_were(workers: int) -> None:
    batches = list(DataLoader(Pictures(), 4, num_workers=workers))
    for number, batch in enumerate(batches):
        check(batch, 4 * number)


def test_epochs_leave_no_descriptor() -> None:
    """A thousand batches that are kept have no descriptor each, as torch's have."""
    loader, files = DataLoader(Pictures(), 4, num_workers=2), []
    for _ in range(3):
        batches = list(loader)
        files.append(len(list(Path("/proc/self/fd").iterdir())))
        del batches
    assert files[2] == files[0]


def test_writing_into_batches_changes_no_other() -> None:
    loader = DataLoader(Pictures(), 4, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for number, batch in enumerate(loader):
            check(batch, 4 * number)
            batch["pixels"].fill_(-1)
            batch["label"].fill_(-1)
    loader.close()
    del batch


class Keeps(Pictures):
    """A dataset that has a batch of another loader."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.batch = batch

    def __getitem__(self, index: int) -> Any:
        return self.batch["pixels"][0] + index


def test_a_dataset_may_keep_a_batch_of_another_loader() -> None:
    batches = iter(DataLoader(Pictures(), 4, num_workers=1))
    kept = Keeps(next(batches))
    others = iter(DataLoader(kept, 4, num_workers=1, prefetch_factor=1))
    kept.batch = {}  # here it is gone, in the worker it is not
    for number in range(1, 6):
        check(next(batches), 4 * number)
    for number, batch in enumerate(others):
        assert batch[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
    del batch


class CollateOnce:
    """A collate function that returns a batch that it has returned before."""

    def __init__(self) -> None:
        self.batch: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        if self.batch is None:
            self.batch = torch_data.default_collate(samples)
        return self.batch["pixels"] if self.batch["label"][0] == 0 else None


def test_a_batch_that_the_worker_keeps_is_sent_again() -> None:
    loader = DataLoader(Pictures(), 4, num_workers=1, collate_fn=CollateOnce())
    for batch in loader:
        assert batch[:, 0].tolist() == [0, 1, 2, 3]
        batch = batch.clone()


def test_a_batch_that_cannot_be_pickled_raises_in_the_trainer() -> None:
    loader = DataLoader(Pictures(), 4, num_workers=1, collate_fn=lambda _: lambda: None)
    with pytest.raises(Exception, match=r"(?s)worker process 0.*pickle"):
        next(iter(loader))


def kill_worker_and_go_on(batches: Any) -> None:
    os.kill(batches._workers[0].pid, signal.SIGKILL)  # torch may raise right behind this
    list(batches)


def test_a_killed_worker_takes_no_batch_away() -> None:
    batches: Any = iter(DataLoader(Pictures(), 4, num_workers=1))
    first = next(batches)
    with pytest.raises(RuntimeError, match="killed by signal"):
        kill_worker_and_go_on(batches)
    check(first, 0)
    del batches


def test_leaving_a_loop_ends_workers_that_wait_for_room() -> None:
    """Forty batches of 12 KB do not fit into the socket: the worker waits when it is ended."""
    loader = DataLoader(
        torch.zeros(400, 3_000), num_workers=1, prefetch_factor=200, timeout=60
    )  # each batch is copied
    batches: Any = iter(loader)
    next(batches)
    worker = batches._workers[0]
    del batches
    assert worker.exitcode == 0


def test_clean_workers_have_an_arena_too() -> None:
    loader = DataLoader(Pictures(), 4, num_workers=1, multiprocessing_context="spawn")
    for number, batch in enumerate(loader):
        check(batch, 4 * number)
    del batch


def test_without_memory_files_batches_come_in_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_memory_file_fault", lambda: "there are none")
    batch = next(iter(DataLoader(Pictures(), 4, num_workers=1)))
    assert batch["pixels"].is_shared()
    check(batch, 0)
