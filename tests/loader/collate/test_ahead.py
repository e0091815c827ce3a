"""Microbatches that are laid out together are what each of them alone is, and come one by one."""

import gc
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.protocol.messages import (
    NO_HANDLES,
    Batch,
    BatchItem,
    EpochPosition,
    Weights,
)
from counterpoise.balancer.protocol.rank_session import Arrival
from counterpoise.loader.collate.ahead import MOST_BYTES, MOST_TOGETHER, StackedAhead
from counterpoise.loader.collate.batch_maker import batch_maker
from counterpoise.loader.collate.buffers import BufferPool
from counterpoise.loader.collate.chosen import BatchMaker
from counterpoise.loader.collate.columnar import collate_together
from counterpoise.loader.collate.fields import EVERY
from counterpoise.loader.collate.undecoded import Undecoded, collate_undecoded
from counterpoise.workers.codec.columns import ColumnReader
from tests.loader.collate.test_layouts import make_sample
from tests.loader.collate.test_stacking import assert_same, decoded, encoded
from tests.loader.collate.test_undecoded import NAMES, both, check, chosen, usual, values

# Types for which workers have no code.
UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
INFO: Any = None  # nothing here is chosen by it
Samples = list[dict[str, Any]]


def together(
    layout: Any, microbatches: Sequence[Undecoded], fields: Any = EVERY, **changed: Any
) -> list[dict[str, Any]] | None:
    given: dict[str, Any] = {"allocate": BufferPool().take, "pad_id": 7, "dummy_tile": 0, **changed}
    return collate_undecoded(layout, ColumnReader(), microbatches, fields, **given)


def can_be_sent(found: list[dict[str, Any]] | None) -> bool:
    tensors = [v for batch in found or () for v in batch.values() if isinstance(v, torch.Tensor)]
    return found is not None and not {each.dtype for each in tensors} & UNSIGNED


@both
@given(
    microbatches=st.lists(usual, min_size=1, max_size=4),
    changes=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([*NAMES, "extra"]), values), max_size=2
    ),
    fields=chosen,
    dummy_tile=st.sampled_from([0, 2]),
)
def test_batches_are_those_of_each_alone(
    layout: Any,
    microbatches: list[Samples],
    changes: list[tuple[int, str, Any]],
    fields: Any,
    dummy_tile: int,
) -> None:
    every = [sample for each in microbatches for sample in each]
    for place, name, value in changes:
        for sample in every if place > 5 else [every[place % len(every)]]:
            sample[name] = value
    undecoded = [encoded(each) for each in microbatches]
    found = together(layout, undecoded, fields, dummy_tile=dummy_tile)
    alone = [check(layout, each, fields, dummy_tile=dummy_tile) for each in microbatches]
    if fields is EVERY:
        given: Any = {"pad_id": 7, "dummy_tile": dummy_tile, "allocate": BufferPool().take}
        held = collate_together(layout, every, [*map(len, microbatches)], **given)
        if held is not None:
            assert_same([*map(decoded, held)], alone)
        assert (held is None) == (not can_be_sent(found) or "labels" not in every[0])
    if found is not None:
        assert_same(found, alone)
    elif not changes:
        assert None in [each and True for each in alone]


def test_tiles_of_one_microbatch_may_be_larger_than_those_of_the_next() -> None:
    large = make_sample(2, [1]) | {"pixel_values": np.ones((1, 3, 9, 9), np.uint8)}
    found = together("packed", [encoded([large]), encoded([make_sample(2, [2])])])
    assert found is not None
    assert [tuple(each["pixel_values"].shape) for each in found] == [(1, 3, 9, 9), (2, 3, 2, 2)]


def test_no_tensor_reaches_into_another_batch() -> None:
    microbatches = [encoded([make_sample(n, [1]), make_sample(1, [])]) for n in (5, 3, 8)]
    found = together("packed", microbatches)
    again = together("packed", microbatches)
    assert found is not None
    assert again is not None
    for tensor in found[1].values():
        if hasattr(tensor, "fill_"):
            tensor.fill_(77)
            storage = tensor.untyped_storage()
            assert storage.nbytes() == tensor.numel() * tensor.itemsize
    assert_same([found[0], found[2]], [again[0], again[2]])


def test_memory_comes_back_with_the_last_batch() -> None:
    pool = BufferPool()
    samples = encoded([make_sample(2000, [])])
    found = together("packed", [samples, samples], allocate=pool.take)
    assert found is not None
    assert pool.kept_bytes == 0
    last = found.pop()
    del found
    gc.collect()
    assert pool.kept_bytes == 0
    del last
    gc.collect()
    assert pool.kept_bytes > 0


# --- which ones


class Counted:
    """A batch maker's stack that notes how many microbatches it was given at a time."""

    def __init__(self, maker: BatchMaker) -> None:
        self.stack = maker.stack
        self.sizes: list[int] = []

    def __call__(self, microbatches: Sequence[Undecoded], fields: Any) -> Any:
        self.sizes.append(len(microbatches))
        assert self.stack is not None
        return self.stack(microbatches, fields)


def arrival(number: int, samples: Samples) -> Arrival:
    headers, payloads = encoded(samples)
    items = tuple(BatchItem(n, f"{n}", header) for n, header in enumerate(headers))
    at, weights = EpochPosition(0, 0, 0, 0), Weights(0, 0, 0, 0, 0, 0)
    return Arrival(
        Batch(0, 0, number, 0, 1, weights, (), at, items, (), (), NO_HANDLES, ()), tuple(payloads)
    )


def ahead(**given: Any) -> tuple[StackedAhead, Counted]:
    """Return what lays out ahead, and how many microbatches it did at a time."""
    balance = Balance(budgets={"tokens": 99}, samples_per_step=2, layout="packed")
    maker = batch_maker(balance, None, given.get("fields"), pins=False)
    counted = Counted(maker)
    made = BatchMaker(
        maker.collate, maker.fields, stack=counted, joins=maker.joins, takes_foreign=True
    )
    return StackedAhead(made, local=True), counted


def taken(stacked: StackedAhead, arrivals: Sequence[Arrival]) -> list[Any]:
    """Take all batches, where all of the arrivals behind each are here."""
    return [
        stacked.take(each, INFO, lambda each: arrivals[arrivals.index(each) + 1 :])
        for each in arrivals
    ]


def usual_arrivals(count: int, length: int = 3) -> list[Arrival]:
    return [arrival(n, [make_sample(length, [1], n)]) for n in range(count)]


def test_what_is_here_is_laid_out_once() -> None:
    stacked, counted = ahead()
    arrivals = usual_arrivals(MOST_TOGETHER + 4)
    batches = taken(stacked, arrivals)
    assert counted.sizes == [MOST_TOGETHER, 4]
    firsts = [int(batch["input_ids"][0, 0]) for batch in batches]
    assert firsts == list(range(len(arrivals)))


def test_what_is_not_here_yet_is_not_waited_for() -> None:
    stacked, counted = ahead()
    arrivals = usual_arrivals(2)
    for each in arrivals:
        assert stacked.take(each, INFO, lambda _: []) is not None
    assert counted.sizes == [1, 1]


def test_large_ones_are_laid_out_alone() -> None:
    stacked, counted = ahead()
    length = MOST_BYTES // 8 // 2  # tokens and labels of four bytes: half of what is allowed
    arrivals = usual_arrivals(5, length=length - 64)
    taken(stacked, arrivals)
    assert counted.sizes == [2, 2, 1]
    stacked, counted = ahead()
    asked = Mock(return_value=[])
    stacked.take(usual_arrivals(1, length=2 * length)[0], INFO, asked)
    assert counted.sizes == [1]
    asked.assert_not_called()


def test_one_without_samples_ends_what_is_laid_out_together() -> None:
    stacked, counted = ahead()
    first, second, third, fourth = usual_arrivals(4)
    empty = arrival(9, [])
    batches = taken(stacked, [first, second, empty, third, fourth])
    assert counted.sizes == [2, 2]
    assert [batch is None for batch in batches] == [False, False, True, False, False]


def test_where_one_is_unusual_each_is_laid_out_by_itself() -> None:
    stacked, counted = ahead()
    arrivals = usual_arrivals(7)
    arrivals[1] = arrival(1, [make_sample(3, [1]) | {"text": "unusual"}])
    batches = taken(stacked, arrivals[:4])
    assert [batch is None for batch in batches] == [False, True, False, False]
    assert counted.sizes == [4, 1, 1, 1, 1]
    taken(stacked, arrivals[4:])
    assert counted.sizes[5:] == [3]


def test_one_that_comes_again_is_laid_out_again() -> None:
    stacked, counted = ahead()
    first, second = usual_arrivals(2)
    assert stacked.take(first, INFO, lambda _: [second]) is not None
    again = arrival(1, [make_sample(3, [1], 1)])
    assert_same(stacked.take(again, INFO, lambda _: []), stacked.take(second, INFO, lambda _: []))
    assert counted.sizes == [2, 1]
    # Taken once: after an exception it is made anew.
    assert stacked.take(second, INFO, lambda _: []) is not None
    assert counted.sizes == [2, 1, 1]


def test_fields_that_differ_from_one_to_the_next_are_laid_out_alone() -> None:
    stacked, counted = ahead(fields=lambda _: {"labels"})
    taken(stacked, usual_arrivals(3))
    assert counted.sizes == [1, 1, 1]
    stacked, counted = ahead(fields=frozenset({"labels"}))
    assert [list(each) for each in taken(stacked, usual_arrivals(3))] == [["labels"]] * 3
    assert counted.sizes == [3]
