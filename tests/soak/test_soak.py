"""What is held, and the calls of a step, after hundreds of epochs: `make soak`."""

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import counterpoise as cp
from counterpoise.workers import Probe, TarDataset
from tests.soak.growth import held, soak

pytestmark = pytest.mark.long
COUNT = 96


class Numbers(Dataset[Any]):
    """Of which every so many samples are broken."""

    def __init__(self, broken: int = 0, count: int = COUNT) -> None:
        self.broken, self.count = broken, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.broken and index % self.broken == 0:
            raise ValueError("broken")
        return torch.full((3,), index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(24))  # a window of packs is gone through at each step


def options(**more: Any) -> dict[str, Any]:
    given = {"batch_size": 4, "shuffle": True, "collate_fn": list, "keep_stats": True}
    return given | {"balance": "fixed", "cost": {"tokens": [3] * COUNT}} | more


def over_epochs(loader: Any, epochs: int = 100, folder: Path | None = None) -> None:
    """Go through epochs of one loader."""

    def turn() -> int:
        return sum(1 for _ in loader)

    soak(turn, lambda: held(folder, loader.state_dict(), loader.stats()), epochs, warm=5)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_of_a_plain_loop_leave_nothing(workers: int) -> None:
    loader: Any = cp.DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers)
    soak(
        lambda: sum(1 for _ in loader), lambda: held(state=loader.state_dict()),
        300 if not workers else 60, warm=5,
    )  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"on_error": "skip", "max_errors": 0.9}])
def test_epochs_of_a_balanced_loop_leave_nothing(more: dict[str, Any]) -> None:
    over_epochs(cp.DataLoader(Numbers(3 if more else 0), **options(**more)))


@pytest.mark.parametrize("more", [{}, {"max_errors": 0.9}])
def test_a_step_costs_the_same_whatever_was_left_out_before(more: dict[str, Any]) -> None:
    count = 80_000
    table = {"tokens": [3] * count}
    data = Numbers(2, count)
    loader: Any = cp.DataLoader(data, **options(cost=table, on_error="skip", **more))
    batches = iter(loader)

    def turn() -> int:
        return sum(1 for _ in itertools.islice(batches, 500))

    soak(turn, lambda: held(state=loader.state_dict()), 38, warm=2)
    assert loader.left_out > 30_000
    loader.close()


def test_epochs_of_a_stream_leave_nothing() -> None:
    balance = cp.Balance(budgets={"tokens": 12}, accumulate=1)
    over_epochs(
        cp.DataLoader(
            Stream(), balance=balance, collate_fn=list, keep_stats=True,
            cost=lambda _: {"tokens": 3},
        ),
        epochs=200,
    )  # fmt: skip


class Captions:
    """A transform that says what a sample costs, and has costs kept."""

    deterministic = True

    def __call__(self, raw: dict[str, Any]) -> Any:
        return len(raw["json"]["caption"])

    def probe(self, raw: dict[str, Any]) -> Probe:
        return Probe(raw["__key__"], {"tokens": len(raw["json"]["caption"])})

    def fingerprint(self) -> str:
        return "captions"


@pytest.mark.parametrize(("workers", "epochs"), [(0, 300), (1, 40)])
def test_kept_costs_do_not_grow(tmp_path: Path, workers: int, epochs: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index in range(COUNT):
            body = json.dumps({"caption": "x" * (1 + index % 50)}).encode()
            member = tarfile.TarInfo(f"s{index:04}.json")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    data = TarDataset(tmp_path / "a.tar", Captions(), cache=tmp_path)
    over_epochs(
        cp.DataLoader(data, **options(cost=None, num_workers=workers)), epochs, tmp_path
    )  # fmt: skip
