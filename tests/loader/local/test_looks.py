"""Ranks look at some samples before they begin: what they see as other data, and what not."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.balancer.run.run import describe_sample_mismatch, pack_looks
from counterpoise.balancer.run.tasks import LOOK
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.plain import as_source

Marks = tuple[tuple[str, str], ...]
INDEXES = tuple(range(16))


class Made:
    """Samples that a function makes of a rank and an index."""

    def __init__(self, rank: int, make: Callable[[int, int], Any]) -> None:
        self.rank, self.make = rank, make

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.make(self.rank, index)


def looked(rank: int, make: Callable[[int, int], Any], cost: Any = None) -> Marks:
    data = Made(rank, make)
    source = as_source(data, cost or {"tokens": [1] * 40})
    reader = PlannedReader(data, source, ["tokens"], 0, list)
    found: Marks = reader.__getitems__([LOOK, 0, 0, *INDEXES])
    return found


def told(one: Marks, other: Marks) -> str:
    return describe_sample_mismatch([pack_looks(one), pack_looks(other)], INDEXES)


def of(rank: int, index: int) -> np.random.Generator:
    return np.random.default_rng([rank, index])


def fails(rank: int, index: int) -> int:
    if index % 3 == rank:
        raise ValueError("it is torn")
    return index


OTHERS: dict[str, Callable[[int, int], Any]] = {
    "numbers": lambda rank, index: index + rank,
    "texts": lambda rank, index: f"text {index + rank}",
    "fractions": lambda rank, index: {"x": torch.from_numpy(of(rank, index).normal(size=(3, 4)))},
    "pictures": lambda rank, index: of(rank, index).integers(0, 255, (3, 4), np.uint8),
    "shapes": lambda rank, index: torch.zeros(index + rank),
    "kinds": lambda rank, index: (index, [None, index][rank]),
    "another order": lambda rank, index: [index, 39 - index][rank],
}
own = np.random.default_rng()
SAME: dict[str, Callable[[int, int], Any]] = {
    "drawn by the process": lambda *_: (torch.rand(3), np.random.rand()),
    "drawn by a generator of its own": lambda *_: own.normal(size=3),
    "now and then": lambda _, index: index + int(own.random() < 0.5),
    "a clock": lambda *_: time.perf_counter_ns(),
    "where it is": lambda rank, index: {"path": f"/host{rank}/cats/{index}.png"},
    "broken": fails,
    "an object": lambda *_: object(),
    "objects in an array": lambda *_: np.array([object()]),
    "no number of numpy's": lambda *_: torch.zeros(3, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_samples_are_told_by_their_indexes(kind: str) -> None:
    why = told(looked(0, OTHERS[kind]), looked(1, OTHERS[kind]))
    assert "rank 1 has others than rank 0, or costs them otherwise: at 0, 1, 2, 3 and more" in why


@pytest.mark.parametrize("kind", SAME)
def test_what_may_differ_is_no_other_sample(kind: str) -> None:
    assert not told(looked(0, SAME[kind]), looked(1, SAME[kind]))


def test_another_cost_function_is_told() -> None:
    ranks = [
        looked(rank, SAME["an object"], lambda _, rank=rank: {"tokens": 5 + rank})
        for rank in (0, 1)
    ]
    assert "costs them otherwise" in told(*ranks)


def test_decoders_of_another_host_may_give_other_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("pictures", "numbers"):
        packed = list[bytes]()
        for rank in (0, 1):
            monkeypatch.setattr("platform.node", lambda rank=rank: f"host {rank}")
            packed.append(pack_looks(looked(rank, OTHERS[kind])))
        assert bool(describe_sample_mismatch(packed, INDEXES)) == (kind == "numbers")


def test_a_slow_look_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.workers.planned.reader.LOOK_S", 0.0)
    assert len(looked(0, OTHERS["numbers"])) == 1
