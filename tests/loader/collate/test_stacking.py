"""Batches are default_collate's, bit by bit, and their memory is used again when they are gone."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from counterpoise.loader.collate.stacking import WarmCollate

LARGE = 5000
Pair = namedtuple("Pair", "left right")


def rows(make: Any, count: int = 3) -> list[Any]:
    return [make(number) for number in range(count)]


def assert_same(ours: Any, torchs: Any) -> None:
    assert type(ours) is type(torchs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
        assert ours.stride() == torchs.stride() or not ours.numel()
        assert torch.equal(ours, torchs)
    elif isinstance(ours, dict):
        assert list(ours) == list(torchs)
        assert_same(list(ours.values()), list(torchs.values()))
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(torchs)
        for mine, theirs in zip(ours, torchs, strict=True):
            assert_same(mine, theirs)
    else:
        assert ours == torchs


USUAL = pytest.mark.parametrize(
    "samples",
    [
        rows(lambda n: torch.full((LARGE,), n)),
        rows(lambda n: {"x": torch.full((2, LARGE), n, dtype=torch.uint8), "y": n, "z": f"{n}"}),
        rows(lambda n: Pair(np.full(LARGE, n, np.int16), [torch.full((LARGE,), 0.5 * n), b"n"])),
        rows(lambda n: torch.arange(4.0 * LARGE).view(4, LARGE).T[n::3][: LARGE // 3]),
        rows(lambda n: torch.full((LARGE,), n, dtype=torch.int32 if n else torch.float32)),
        rows(lambda n: torch.full((LARGE,), n, dtype=torch.complex64).conj()),
        [torch.empty(0, LARGE)] * 3,
        rows(lambda n: torch.tensor(n)),
        rows(lambda n: torch.full((LARGE,), n, dtype=torch.bfloat16), count=1),
        rows(lambda n: {"x": {"y": (torch.full((LARGE,), n), f"{n}")}, "none": [n, 0.5]}),
        rows(lambda n: (np.float32(n), np.full((2, 3), n), n % 2 == 0)),
        rows(lambda n: {"large": torch.full((LARGE,), n), "small": torch.full((3,), n), "n": n}),
    ],
)  # fmt: skip


@USUAL
def test_a_batch_is_that_of_default_collate(samples: list[Any]) -> None:
    collate = WarmCollate()
    for _ in range(2):  # into new memory, and into used
        assert_same(collate(samples), default_collate(samples))


def test_gradients_and_classes_of_ones_own_are_left_to_torch() -> None:
    learnt = rows(lambda n: torch.full((LARGE,), float(n), requires_grad=True))
    assert WarmCollate()(learnt).requires_grad
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        WarmCollate()(rows(lambda n: torch.zeros(LARGE + n)))
    with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
        WarmCollate()([object()])


def test_memory_is_used_again_only_when_nothing_lies_on_it() -> None:
    collate, samples = WarmCollate(), rows(lambda n: torch.full((LARGE,), n))
    first = collate(samples)
    kept, where = first[2, 7:], first.data_ptr()
    del first
    second = collate(samples)
    assert second.data_ptr() != where
    second.zero_()
    assert set(kept.tolist()) == {2}
    del kept
    assert collate(samples).data_ptr() == where


def test_who_has_replaced_torchs_entry_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, **_: len(batch))
    assert WarmCollate()(rows(lambda n: torch.full((LARGE,), n))) == 3
