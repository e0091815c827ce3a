"""What is held, and what a step costs, after 300 epochs or 20,000 steps: `make soak`."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import counterpoise as cp
from counterpoise.workers import Probe, TarDataset
from tests.soak.growth import held, series_of, soak
from tests.tars import write_tar

prometheus_client: Any = pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.long
COUNT = 96
# Samples may be lacking, and be told of in the state; all in all as many as those that are not.
SKIP = {"on_error": cp.OnError("skip", max_errors=0.9)}


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
        return iter(range(COUNT))


def make(data: Any, **options: Any) -> Any:
    common: dict[str, Any] = {"shuffle": True, "collate_fn": list, "keep_stats": True}
    return cp.DataLoader(data, **common | options)


def balanced(data: Any, **options: Any) -> Any:
    common: dict[str, Any] = {
        "batch_size": 4,
        "balance": "fixed",
        "cost": {"tokens": [3] * len(data)},
    }
    return make(data, **common | options)


def over_epochs(loader: Any, steps: int | None = None, folder: Path | None = None) -> None:
    """Go through 300 epochs of one loader, leaving each after some steps if that is said."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(loader.metrics())

    def turn() -> int:
        done = 0
        for _ in itertools.islice(loader, steps):
            done += 1
        return done

    soak(
        turn,
        lambda: held(
            folder,
            loader.state_dict(),
            series_of(prometheus_client.generate_latest(registry).decode()),
        ),
    )
    loader.close()


@pytest.mark.parametrize(("more", "steps"), [({}, None), ({}, 5), (SKIP, None)])
@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_of_a_plain_loop_leave_nothing(
    workers: int, more: dict[str, Any], steps: int | None
) -> None:
    data = Numbers(broken=3 if more else 0)
    over_epochs(make(data, batch_size=4, num_workers=workers, **more), steps)


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("more", [{}, SKIP])
def test_epochs_of_a_balanced_loop_leave_nothing(more: dict[str, Any], steps: int | None) -> None:
    over_epochs(balanced(Numbers(broken=3 if more else 0), **more), steps)


@pytest.mark.parametrize("kind", [make, balanced])
def test_a_step_costs_the_same_whatever_was_left_out_before(kind: Any) -> None:
    loader = kind(Numbers(broken=2, count=88_000), batch_size=4, **SKIP)
    batches = iter(loader)

    def turn() -> int:
        for _ in itertools.islice(batches, 100):
            pass
        loader.state_dict()
        return 100

    # The last batch is held, and has more samples or fewer.
    soak(turn, lambda: replace(held(state=loader.state_dict()), tensors=0), turns=200)
    assert next(batches, None) is not None
    assert loader.left_out > 35_000
    loader.close()


@pytest.mark.parametrize("steps", [None, 5])
def test_epochs_of_a_stream_leave_nothing(steps: int | None) -> None:
    balance = cp.Balance(budgets={"tokens": 12}, accumulate=1)
    over_epochs(make(Stream(), shuffle=None, balance=balance, cost=lambda _: {"tokens": 3}), steps)


class Captions:
    """A transform that says what a sample costs, and has costs kept."""

    deterministic = True

    def __call__(self, raw: dict[str, Any]) -> Any:
        return len(raw["json"]["caption"])

    def probe(self, raw: dict[str, Any]) -> Probe:
        return Probe(raw["__key__"], {"tokens": len(raw["json"]["caption"])})

    def fingerprint(self) -> str:
        return "captions"


@pytest.mark.parametrize("workers", [0, 1])
def test_kept_costs_do_not_grow(tmp_path: Path, workers: int) -> None:
    captions = [{"caption": "x" * (1 + index % 50)} for index in range(COUNT)]
    members = {f"s{n:04}.json": json.dumps(each).encode() for n, each in enumerate(captions)}
    data = TarDataset(write_tar(tmp_path / "a.tar", members), Captions(), cache=tmp_path)
    over_epochs(balanced(data, cost=None, num_workers=workers), folder=tmp_path)
