"""Microbatches that workers lay out are those that the trainer would: bytes, views, and errors."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Balance, DataLoader
from counterpoise.loader.balanced import microbatches
from counterpoise.loader.collate.payloads import read_laid_out
from counterpoise.loader.step.errors import LoaderError
from counterpoise.workers.arena.views import views_alive
from tests.loader.collate.test_stacking import assert_same

COUNT = 320


class Texts:
    """Small samples of texts and tiles, which take no time; those in `broken` raise."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return COUNT

    def tokens(self, index: int) -> int:
        return 3 + index * 7919 % 40

    def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        if index in self.broken:
            raise ValueError("it does not decode")
        ids = np.arange(self.tokens(index), dtype=np.int32) + index
        tiles = index % 3
        return {
            "input_ids": ids,
            "labels": ids,
            "pixel_values": np.full((tiles, 3, 4, 4), index % 251, np.uint8),
            "tiles_per_image": np.array([tiles] if tiles else [], np.int32),
            "weights": np.full((2, 3), index / 7),
        }


class Rows:
    """Samples that default_collate stacks: large and small arrays, a number and text."""

    def __init__(self, broken: tuple[int, ...] = (), unlike: tuple[int, ...] = ()) -> None:
        self.broken = broken
        self.unlike = unlike

    def __len__(self) -> int:
        return COUNT

    def tokens(self, _: int) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken:
            raise ValueError("it does not decode")
        labels = torch.full((5 + (index in self.unlike),), index)
        labels[: index % 3] = -100
        return {
            "pixels": torch.full((3, 80, 80), index % 251, dtype=torch.uint8),
            "labels": labels,
            "weights": np.full((2, 3), index / 7),
            "name": f"sample {index}",
            "number": index,
        }


def stacked(**given: Any) -> dict[str, Any]:
    """Return what a loader of stacked rows is given."""
    return {"data": Rows(), "balance": {"layout": "torch"}} | given


def loader(workers: int = 2, data: Any = None, **given: Any) -> DataLoader[Any, Any]:
    data = Texts() if data is None else data
    balance = given.pop("balance", {})
    every: dict[str, Any] = {
        "balance": Balance(
            "balanced",
            **{
                "budgets": {"tokens": 400},
                "samples_per_step": 32,
                "accumulate": 4,
                "layout": "packed",
            }
            | balance,
        ),
        "cost": {"tokens": [data.tokens(n) for n in range(COUNT)]},
        "shuffle": True,
    }
    if workers:
        every["persistent_workers"] = True
    return DataLoader(data, num_workers=workers, **every | given)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that workers have laid out, as they were read."""
    found: list[Any] = []

    def noted(arrival: Any) -> Any:
        batch = read_laid_out(arrival)
        found.append(arrival.batch)
        return batch

    monkeypatch.setattr(microbatches, "read_laid_out", noted)
    return found


def epochs(made: DataLoader[Any, Any], count: int = 2) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        yield from made.with_info()


def expected(**given: Any) -> list[tuple[Any, Any]]:
    made = loader(workers=0, **given)
    found = list(epochs(made))
    made.close()
    return found


each_layout = pytest.mark.parametrize("given", [{}, stacked()], ids=["packed", "torch"])


@pytest.mark.parametrize(
    ("layout", "context"), [("packed", "fork"), ("padded", "fork"), ("packed", "spawn")]
)
def test_batches_are_those_that_the_trainer_lays_out(
    layout: str, context: str, read: list[Any]
) -> None:
    balance = {"layout": layout, "pad_id": 9, "dummy_tile": 4}
    due = expected(balance=balance)
    made = loader(balance=balance, multiprocessing_context=context)
    found = list(epochs(made))
    assert_same([batch for batch, _ in found], [batch for batch, _ in due])
    assert [info for _, info in found] == [info for _, info in due]
    assert read
    made.close()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_batches_are_those_that_default_collate_makes(context: str, read: list[Any]) -> None:
    due = expected(**stacked())
    made = loader(multiprocessing_context=context, **stacked())
    found = list(epochs(made))
    assert_same([batch for batch, _ in found], [batch for batch, _ in due])
    assert [info for _, info in found] == [info for _, info in due]
    assert read
    made.close()


def test_samples_that_cannot_be_stacked_raise_what_default_collate_does(read: list[Any]) -> None:
    made = loader(**stacked(data=Rows(unlike=(200,))))
    found = []
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        found.extend(epochs(made, 1))
    made.close()
    assert read


@each_layout
def test_they_are_views_of_lent_memory_that_nobody_else_writes_to(
    given: dict[str, Any], read: list[Any]
) -> None:
    gc.collect()
    # Signals in test_exceptions.py interrupt finalizers, too, which leaves some counted.
    others = views_alive()
    due = [batch for batch, _ in expected(**given)]
    made = loader(**given)
    kept = []
    for number, (batch, _) in enumerate(epochs(made)):
        assert_same(batch, due[number])
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.fill_(number % 100)
        kept.append(batch)
    for number, batch in enumerate(kept):
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                assert (value == number % 100).all()
    assert read
    assert views_alive() > others
    made.close()
    del kept, batch, value
    gc.collect()
    assert views_alive() == others


@each_layout
def test_a_sample_that_fails_leaves_its_microbatch_to_the_trainer(
    given: dict[str, Any], read: list[Any]
) -> None:
    data = type(given.get("data", Texts()))
    given = {**given, "data": data(broken=(3, 100, 101)), "on_error": "skip"}
    due = expected(**given)
    made = loader(**given)
    found = list(epochs(made))
    assert_same([batch for batch, _ in found], [batch for batch, _ in due])
    assert [info for _, info in found] == [info for _, info in due]
    assert sum(len(info.holes) for _, info in found) == 6
    assert read
    assert not [batch for batch in read if batch.holes]
    made.close()


@pytest.mark.parametrize(
    "given",
    [
        {"transport": "inline"},
        {"balance": {"layout": "torch"}, "collate_fn": list},
        {"data": "without labels"},
    ],
)
def test_others_are_laid_out_by_the_trainer(given: dict[str, Any], read: list[Any]) -> None:
    class Unlabelled(Texts):
        def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
            sample = super().__getitem__(index)
            del sample["labels"]
            return sample

    if given.get("data"):
        given = {**given, "data": Unlabelled()}
    without = {name: value for name, value in given.items() if name != "transport"}
    due = expected(**without)
    made = loader(multiprocessing_context="fork", **given)
    found = [batch for batch, _ in epochs(made)]
    if given.get("collate_fn") is list:
        for own, other in zip(found, (batch for batch, _ in due), strict=True):
            assert [list(each) for each in own] == [list(each) for each in other]
    else:
        assert_same(found, [batch for batch, _ in due])
    assert not read
    made.close()


def test_a_process_that_needs_some_fields_gets_those(read: list[Any]) -> None:
    due = expected(fields={"labels", "weights"})
    made = loader(fields={"labels", "weights"})
    found = list(epochs(made))
    assert_same([dict(b) for b, _ in found], [dict(b) for b, _ in due])
    assert read
    with pytest.raises(KeyError, match="input_ids"):
        found[0][0]["input_ids"]
    made.close()


def test_labels_are_compared_with_their_count(read: list[Any]) -> None:
    counts = {
        "tokens": [Texts().tokens(n) for n in range(COUNT)],
        "label_tokens": [Texts().tokens(n) - 1 for n in range(COUNT)],
    }
    made = loader(cost=counts)
    assert len(list(epochs(made, 1))) == 40
    assert read
    made.close()
    counts["label_tokens"] = [count + 1 for count in counts["label_tokens"]]
    made = loader(cost=counts)
    with pytest.raises(LoaderError, match="label tokens"):
        list(epochs(made, 1))
    made.close()


def test_labels_of_rows_are_compared_with_their_count(read: list[Any]) -> None:
    data = Rows()
    for first in (0, 1):  # either at their token, or at the one before
        counted = [int((data[n]["labels"][first:] != -100).sum()) for n in range(COUNT)]
        made = loader(cost={"tokens": [10] * COUNT, "label_tokens": counted}, **stacked())
        assert len(list(epochs(made, 1))) == 40
        made.close()
    assert read
    counted = [count + 1 for count in counted]
    made = loader(cost={"tokens": [10] * COUNT, "label_tokens": counted}, **stacked())
    with pytest.raises(LoaderError, match="label tokens"):
        list(epochs(made, 1))
    made.close()


@each_layout
def test_a_position_in_the_middle_of_a_step_goes_on(given: dict[str, Any], read: list[Any]) -> None:
    due = [batch for batch, _ in expected(**given)]
    made = loader(**given)
    batches = epochs(made)
    for number in range(50):
        assert_same(next(batches)[0], due[number])
    state = made.state_dict()
    made.close()
    made = loader(**given)
    made.load_state_dict(state)
    rest = [batch for batch, _ in epochs(made, 1)]
    assert_same(rest, due[50:])
    assert read
    made.close()
