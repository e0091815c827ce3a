"""What a local loop does over its epochs: whom it asks for costs, and which data it sees."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from counterpoise.balancer.run.tasks import Measured
from counterpoise.loader import Balance, DataLoader, LoaderError
from counterpoise.loader.local.loop import LocalLoop
from counterpoise.workers.planned.reader import PlannedReader
from tests.loader import balanced_data as made

COUNT = 24


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return what tells how many samples were measured since it was asked last."""
    found, measure = [0], PlannedReader._measure

    def counted(reader: PlannedReader, task: Any) -> Measured:
        found[0] += len(task.indexes)
        return measure(reader, task)

    monkeypatch.setattr(PlannedReader, "_measure", counted)

    def since() -> int:
        count, found[0] = found[0], 0
        return count

    return since


def loader(data: Any, **given: Any) -> DataLoader:
    balance = Balance(samples_per_step=6, accumulate=2)
    return DataLoader(data, balance=balance, shuffle=True, collate_fn=list, **given)


@pytest.mark.parametrize("cost", [None, {"tokens": [*range(COUNT)]}])
def test_known_costs_are_measured_in_no_epoch(cost: Any, measured: Callable[[], int]) -> None:
    batches = loader(range(COUNT), cost=cost)
    for _ in range(3):
        list(batches)
    assert measured() == 0


def test_what_a_probe_says_may_change_between_epochs(measured: Callable[[], int]) -> None:
    batches = loader(made.Augmented(COUNT))
    for _ in range(2):
        list(batches)
        assert measured() == COUNT


def test_what_loading_shows_is_measured_in_the_first_epoch(measured: Callable[[], int]) -> None:
    batches = loader(made.Measured(COUNT), cost=made.measure)
    expected = [COUNT, 0, 0]
    for count in expected:
        list(batches)
        assert measured() == count


def test_what_loading_draws_is_measured_in_each_epoch(measured: Callable[[], int]) -> None:
    class Drawn(made.Measured):
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return {**sample, "input_ids": sample["input_ids"][: 1 + int(9 * sample["noise"]) % 9]}

    batches = loader(Drawn(COUNT), cost=lambda sample: {"tokens": len(sample["input_ids"])})
    for _ in range(3):
        found = list(batches)
        assert measured() == COUNT
        assert len([*itertools.chain(*found)]) == COUNT


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("count", [COUNT - 6, COUNT + 6])
def test_data_of_another_length_are_seen_in_the_next_epoch(workers: int, count: int) -> None:
    data = [*range(COUNT)]
    batches = loader(data, num_workers=workers)
    assert sorted(itertools.chain(*batches)) == [*range(COUNT)]
    data[:] = range(count)
    assert sorted(itertools.chain(*batches)) == [*range(count)]
    batches.close()


def test_a_short_step_of_a_window_is_left_out_where_no_microbatch_may_be_empty() -> None:
    """It has fewer samples than microbatches, though no sample of it is a hole."""
    data = made.Augmented(53)
    balance = Balance("fixed", accumulate=2, mode="window", seed=9)
    batches = DataLoader(
        data, 1, shuffle=True, balance=balance, collate_fn=lambda samples: samples[0]["name"],
    )  # fmt: skip
    infos = [info for _, info in batches.with_info()]
    assert {info.samples for info in infos} == {1}
    keys = [key for info in infos for key in info.keys]
    assert len(keys) == len({*keys}) == 52
    assert batches.left_out == 1


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_can_be_planned_is_handed_out_before_what_cannot(workers: int) -> None:
    tokens = [*range(1, 19), 50, *range(1, 6)]
    budgets = Balance(samples_per_step=6, budgets={"tokens": 40}, accumulate=3, oversize="error")
    batches = DataLoader(
        range(COUNT), balance=budgets, shuffle=False, collate_fn=list, cost={"tokens": tokens},
        num_workers=workers,
    )  # fmt: skip
    found = list[Any]()
    for _ in range(2):
        iterator = iter(batches)
        with pytest.raises(LoaderError, match=r"sample '18' is over budget by itself"):
            found.extend(iterator)
        assert sorted(itertools.chain(*found)) == [*range(18)]
        found.clear()
    batches.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_is_collected_while_the_next_begins_ends_nothing(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = loader(range(COUNT), cost={"tokens": [*range(COUNT)]}, num_workers=workers)
    kept = [iter(batches)]
    next(kept[0])
    start = LocalLoop._start_run

    def start_and_collect(self: LocalLoop, *given: Any) -> None:
        start(self, *given)
        kept.clear()

    monkeypatch.setattr(LocalLoop, "_start_run", start_and_collect)
    assert sorted(itertools.chain.from_iterable(batches)) == [*range(COUNT)]
    batches.close()
