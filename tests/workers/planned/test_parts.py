"""What a worker makes of a pool's parts, and what it keeps of samples that it measured."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from counterpoise.balancer.pool.messages import (
    BATCH,
    COSTS,
    SAMPLES,
    DoPart,
    FailedPlace,
    PartBroken as Broken,
)
from counterpoise.balancer.run.tasks import Load, LoadedBatch, Measure
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.planned.parts import do_part
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.plain import as_source

LABELS = [5, -100, 7]


class Numbers:
    """Arrays of 100 * index bytes; `loads` counts how often each was loaded."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken, self.loads = broken, Counter[int]()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.loads[index] += 1
        if index in self.broken:
            raise SampleError(str(index), "it is torn")
        return {"x": np.full(100 * index, index, np.uint8), "labels": LABELS}


def summed(samples: list[Any]) -> dict[str, Any]:
    return {"sums": torch.tensor([int(s["x"].sum()) for s in samples]), "n": len(samples)}


def reader_of(data: Numbers, collate: Any = summed, by_loading: bool = True, **options: Any) -> Any:
    cost: Any = {"tokens": [*range(20)]}
    if by_loading:
        cost = lambda sample: {"tokens": len(sample["x"])}  # noqa: E731
    return PlannedReader(data, as_source(data, cost), ["tokens"], 0, collate, **options)


def done(reader: PlannedReader, form: str, task: Load | Measure, serial: int = 7) -> Any:
    """Return the message, as it is after its way, and the batch of the frames."""
    message, frames = do_part(reader, DoPart(3, form, tuple(task.packed())), serial)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message
    assert message.number == 3
    if not frames:
        return message, None
    assert (message.serial, message.frames) == (serial, tuple(map(len, frames)))
    assert message.nbytes == sum(message.frames)
    return message, decode_batch(frames)


def same_samples(some: list[Any], indexes: list[int]) -> bool:
    return all(
        list(sample) == ["x", "labels"]
        and np.array_equal(sample["x"], np.full(100 * index, index, np.uint8))
        and sample["labels"] == LABELS
        for sample, index in zip(some, indexes, strict=True)
    )


FACTS = Load(0, (1, 2, 3), names=True, costs=True, labels=True, size=True)


def test_a_batch_comes_with_its_facts():
    reader = reader_of(Numbers(), count_labels=lambda *_: 9)
    message, batch = done(reader, BATCH, FACTS)
    assert batch["sums"].tolist() == [100, 400, 900]
    assert batch["n"] == 3
    assert (message.names, message.costs) == (("1", "2", "3"), ((100,), (200,), (300,)))
    assert (message.labels, message.label_tokens) == ((3, 6), 9)
    assert message.sample_bytes == 600 + 3 * 24


def test_what_was_not_asked_is_not_told():
    message, _ = done(reader_of(Numbers()), BATCH, Load(0, (1, 2)))
    nothing = (message.names, message.costs, message.labels, message.failed)
    assert nothing == ((), (), (), ())
    assert (message.label_tokens, message.sample_bytes) == (-1, -1)


def test_samples_come_as_they_are_with_the_same_facts_but_of_a_batch():
    reader = reader_of(Numbers(), collate=None, count_labels=lambda *_: 9)
    message, samples = done(reader, SAMPLES, FACTS)
    assert same_samples(samples, [1, 2, 3])
    other, _ = done(reader_of(Numbers(), count_labels=lambda *_: 9), BATCH, FACTS)
    assert message.label_tokens == -1
    for name in ("names", "costs", "labels", "failed", "sample_bytes"):
        assert getattr(message, name) == getattr(other, name)


def test_samples_that_cannot_be_used_are_left_out_and_told():
    reader = reader_of(Numbers((2,)), skips=True)
    message, samples = done(reader, SAMPLES, Load(0, (1, 2, 3), names=True))
    assert same_samples(samples, [1, 3])
    assert message.failed == (FailedPlace(1, "2", "it is torn", False, ""),)
    assert message.names == ("1", "3")


@pytest.mark.parametrize("form", [BATCH, SAMPLES])
def test_of_a_sample_that_ends_the_run_nothing_is_kept(form):
    message, batch = done(reader_of(Numbers((2,))), form, Load(0, (1, 2, 3)))
    assert batch is None
    assert (message.serial, message.nbytes, message.frames) == (0, 0, ())
    assert [failed.place for failed in message.failed] == [1]


def test_where_all_have_failed_an_empty_batch_is_made_but_no_empty_samples():
    reader = reader_of(Numbers((2,)), skips=True)
    assert done(reader, BATCH, Load(0, (2,)))[1]["n"] == 0
    assert done(reader, SAMPLES, Load(0, (2,)))[0].serial == 0


def test_a_spare_sample_comes_in_either_form():
    reader, task = reader_of(Numbers((1,)), skips=True), Load(0, (1, 2, 3), spare=True)
    assert done(reader, BATCH, task)[1]["sums"].tolist() == [400]
    assert same_samples(done(reader, SAMPLES, task)[1], [2])


def test_costs_are_told_and_failures_in_their_places():
    message, _ = done(reader_of(Numbers((2,)), skips=True), COSTS, Measure(0, (1, 2, 3)))
    assert message.costs == ((100,), (), (300,))
    assert [failed.place for failed in message.failed] == [1]
    assert message.kept == ()
    assert not message.differs


def fails(samples: list[Any]) -> Any:
    raise KeyError("pixel_values")


@pytest.mark.parametrize(
    ("collate", "why"),
    [
        (fails, "in fails"),
        (fails, "KeyError: 'pixel_values'"),
        (lambda _: {"x": fails}, r"batch\['x'\]"),
    ],
)
def test_what_collating_raises_is_told_with_its_traceback(collate, why):
    message, frames = do_part(reader_of(Numbers(), collate), DoPart(3, BATCH, (0, 0, 0, 1)), 7)
    assert type(message) is Broken
    assert not frames
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(message.error)


class Odd(Numbers):
    """Numbers, but for what nothing but Python knows."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return sample | {"when": slice(index)} if index == 3 else sample


def test_a_sample_that_cannot_travel_is_named_with_its_field():
    part = DoPart(3, SAMPLES, tuple(Load(0, (2, 1, 3)).packed()))
    message, frames = do_part(reader_of(Odd((1,)), skips=True), part, 7)
    assert type(message) is Broken
    assert not frames
    assert message.error.startswith("sample '3': batch[1]['when'] is of type slice, and what")


@pytest.mark.parametrize(
    ("form", "task"), [(BATCH, (1, 0, 0)), (COSTS, (0, 0, 0, 1)), ("tea", (0, 0, 0)), (BATCH, ())]
)
def test_a_form_that_does_not_fit_its_task_is_broken(form, task):
    message, _ = do_part(reader_of(Numbers()), DoPart(3, form, task), 7)
    assert "no worker can make" in message.error


# --- samples that are kept


def kept_reader(data: Numbers, most_bytes: int = 1 << 20, **options: Any) -> Any:
    reader = reader_of(data, **options)
    reader.keep_samples(most_bytes)
    return reader


@pytest.mark.parametrize("threads", [1, 3])
def test_a_sample_that_was_loaded_to_be_measured_is_not_loaded_again(threads):
    data = Numbers((2,))
    reader = kept_reader(data, skips=True, threads=threads)
    assert done(reader, COSTS, Measure(0, (1, 2, 3)))[0].kept == (0, 2)
    assert same_samples(done(reader, SAMPLES, Load(0, (3, 4, 1)))[1], [3, 4, 1])
    assert data.loads == {1: 1, 2: 1, 3: 1, 4: 1}
    done(reader, SAMPLES, Load(0, (3,)))
    assert data.loads[3] == 2  # it was handed out


def test_samples_are_kept_within_a_budget_and_its_room_comes_back():
    reader = kept_reader(Numbers(), most_bytes=600)
    assert done(reader, COSTS, Measure(0, (3, 4, 2)))[0].kept == (0, 2)
    assert done(reader, COSTS, Measure(0, (3, 4, 2)))[0].kept == (0, 2)
    done(reader, BATCH, Load(0, (3,)))
    assert done(reader, COSTS, Measure(0, (3, 4, 2)))[0].kept == (0, 2)
    done(reader, BATCH, Load(0, (3, 2)))
    assert done(reader, COSTS, Measure(0, (4, 3, 2)))[0].kept == (0,)


def test_another_epoch_forgets_what_is_kept():
    data = Numbers()
    reader = kept_reader(data)
    done(reader, COSTS, Measure(0, (1, 2)))
    done(reader, SAMPLES, Load(1, (1,)))
    done(reader, SAMPLES, Load(0, (1,)))
    assert data.loads == {1: 3, 2: 1}


def test_a_second_measure_as_of_the_next_epoch_keeps_the_first():
    data = Numbers()
    reader = kept_reader(data)
    assert done(reader, COSTS, Measure(0, (1, 2), again=True))[0].kept == (0, 1)
    assert data.loads == {1: 2, 2: 2}
    done(reader, SAMPLES, Load(0, (1, 2)))
    assert data.loads == {1: 2, 2: 2}


def test_a_source_that_knows_costs_without_loading_keeps_nothing():
    data = Numbers()
    assert done(kept_reader(data, by_loading=False), COSTS, Measure(0, (1, 2)))[0].kept == ()
    assert not data.loads


def test_a_local_loop_keeps_nothing():
    data = Numbers()
    reader = reader_of(data)
    reader.do(Measure(0, (1, 2)).packed())
    made = reader.do(Load(0, (1, 2), names=True).packed())
    assert type(made) is LoadedBatch
    assert data.loads == {1: 2, 2: 2}
