"""Balanced loaders whose workers lend their memory: the same bytes, and nothing left."""

import gc
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Balance, DataLoader
from counterpoise.workers.arena.views import views_alive

COUNT = 48


class Pictures:
    """Samples of different sizes, with an array, a tensor and a name."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = np.arange(3 + index % 5)
        tiles = np.full((1 + index % 3, 3, 32, 32), index, np.uint8)
        return {
            "input_ids": tokens,
            "labels": tokens,
            "pixel_values": tiles,
            "tiles_per_image": np.array([len(tiles)]),
            "weight": torch.full((20,), float(index)),
        }


class Plain(Pictures):
    """The same as arrays alone, which need no pickle."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "weight": sample["weight"].numpy()}


class Fixed(Pictures):
    """Samples of one shape, for torch's own collate function."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "rows": torch.full((700,), float(index)), "name": f"n{index}"}


def length(sample: dict[str, Any]) -> dict[str, int]:
    """Return what a sample costs."""
    return {"tokens": len(sample["input_ids"])}


def loader(data: Any, transport: Any, workers: int = 2, **given: Any) -> DataLoader[Any, Any]:
    """Return a balanced loader of samples that are measured by decoding them."""
    every: dict[str, Any] = {"balance": Balance("fixed", layout="packed"), "cost": length, **given}
    return DataLoader(data, 4, True, num_workers=workers, transport=transport, **every)


def digest(thing: Any) -> str:
    """Return a digest of all bytes of a batch, and their types."""
    seen = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for name in sorted(part):
                seen.update(name.encode())
                add(part[name])
        elif isinstance(part, list):
            for each in part:
                add(each)
        elif isinstance(part, (torch.Tensor, np.ndarray)):
            seen.update(f"{part.dtype} {tuple(part.shape)}".encode())
            seen.update(np.asarray(part).tobytes())
        else:
            seen.update(repr(part).encode())

    add(thing)
    return seen.hexdigest()


def mapped() -> int:
    """Return the number of lent segments that are mapped in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:counterpoise")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that a test leaves no mapping and no view."""
    gc.collect()
    before = mapped(), views_alive()
    yield
    gc.collect()
    assert (mapped(), views_alive()) == before


TABLE = {"tokens": [1 + n % 7 for n in range(COUNT)]}
INLINE_TOO = Plain()
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "packed, arrays": (INLINE_TOO, {"balance": Balance("fixed", layout="packed")}),
    "padded, balanced, in a window": (
        Plain(), {"balance": Balance(mode="window", layout="padded", accumulate=2)},
    ),
    "torch's": (Fixed(), {"balance": "fixed", "cost": TABLE}),
    "as they are": (Pictures(), {"balance": "fixed", "collate_fn": list}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_batches_are_the_same_whichever_way_they_come(case: str) -> None:
    data, given = CASES[case]
    found = {}
    ways = [("inline", 0), ("arena", 2), *([("inline", 1)] if data is INLINE_TOO else [])]
    for transport, workers in ways:
        one = loader(data, transport, workers, **given)
        found[transport, workers] = [digest(batch) for batch in one]
        one.close()
    inside, *others = found.values()
    assert all(other == inside for other in others)
    assert len(inside) == COUNT // 4


def test_batches_that_are_kept_and_written_to_change_no_other() -> None:
    one = loader(Pictures(), "arena", collate_fn=list, balance="fixed")
    expected = {int(s["weight"][0]): digest(s) for batch in one for s in batch}
    kept = []
    for number, batch in enumerate(one):
        for sample in batch:
            index = int(sample["weight"][0])
            assert digest(sample) == expected[index]
            if number % 2:
                sample["weight"].fill_(-1)
                sample["pixel_values"][:] = 0
            else:
                kept.append((index, sample))
    one.close()
    assert mapped()
    assert all(digest(sample) == expected[index] for index, sample in kept)


def test_a_killed_worker_takes_nothing_away() -> None:
    expected = [digest(batch) for batch in loader(Plain(), "inline", 0)]
    one = loader(Plain(), "arena")
    batches = iter(one)
    found = [next(batches)]
    balanced: Any = one._balanced
    supervisor = balanced._connection._processes.pool.supervisor_pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    found.extend(batches)
    assert [digest(batch) for batch in found] == expected
    directory = balanced._connection.endpoint.removeprefix("ipc://").removesuffix("/balancer")
    assert Path(directory).is_dir()
    one.close()
    assert not Path(directory).exists()


def test_what_is_too_large_for_the_budget_s_memory_comes_inline() -> None:
    """A worker lends no more than the byte budget: below a segment, nothing."""
    expected = [digest(batch) for batch in loader(Plain(), "inline", 0)]
    one = loader(Plain(), "arena", buffer_bytes=200_000)
    assert [digest(batch) for batch in one] == expected
    one.close()


def test_the_arena_is_for_workers_of_its_own() -> None:
    with pytest.raises(ValueError, match="not for those of"):
        loader(Plain(), "arena", balancer="tcp://127.0.0.1:5555")
