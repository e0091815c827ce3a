"""Batches are default_collate's, bit by bit, and their memory is used again when they are gone."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from counterpoise.balancer.protocol.messages import Handles
from counterpoise.loader.collate.stacking import WarmCollate, collate_together
from counterpoise.workers.codec.frames import decode_packed, encode_packed, payload_of
from counterpoise.workers.codec.tensors import Encoded
from counterpoise.workers.lending.placed_payloads import PlacedPayloads

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


def decoded(batch: Encoded) -> Any:
    header, buffers = batch
    return decode_packed(header, payload_of(buffers), allow_object=True)


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


ENCODED = [
    rows(lambda n: torch.full((LARGE,), n)),
    rows(lambda n: torch.full((2, 3), 0.5 * n, dtype=torch.bfloat16)),
    rows(lambda n: (torch.tensor(n), n, 0.5 * n, bool(n % 2))),
    rows(lambda n: [torch.full((LARGE,), n, dtype=torch.uint8), torch.zeros(0, 2)]),
    rows(lambda n: {"x": torch.full((LARGE,), n % 2 == 0), "y": n, "z": torch.ones(1) * n}),
    rows(lambda n: {"ids": torch.arange(n, n + 3), 7: 8}, count=1),
]


def encoded(samples: list[Any]) -> tuple[list[bytes], list[Any]]:
    """Return headers and payloads, as they lie in a worker's memory or come in a message."""
    headers, payloads = [], list[Any]()
    for sample in samples:
        header, buffers = encode_packed(sample)
        headers.append(header)
        whole = payload_of(buffers)
        payloads.append(memoryview(whole) if len(payloads) % 2 else whole)
    return headers, payloads


@pytest.mark.parametrize("samples", ENCODED[:-1])
def test_a_batch_of_payloads_is_that_of_default_collate(samples: list[Any]) -> None:
    batch = WarmCollate().of_payloads(*encoded(samples))
    assert_same(batch, default_collate(samples))
    tensors = batch.values() if isinstance(batch, dict) else batch
    for tensor in [batch] if isinstance(batch, torch.Tensor) else tensors:
        tensor.zero_()  # which is nobody else's, and may be written to


def placed(payloads: list[Any], gap: int) -> PlacedPayloads:
    """Return payloads in two runs: the first half evenly spaced, the others not."""
    half, sizes = len(payloads) // 2, [len(each) for each in payloads]
    runs, offsets = [bytearray(), bytearray()], []
    for n, payload in enumerate(payloads):
        run = runs[n >= half]
        run += bytes(gap * n if n > half else gap)
        offsets.append(len(run))
        run += payload
    run_of = tuple(int(n >= half) for n in range(len(payloads)))
    handles = Handles((), run_of, tuple(offsets), tuple(sizes))
    return PlacedPayloads([memoryview(run) for run in runs], handles)


@pytest.mark.parametrize("gap", [0, 24])
@pytest.mark.parametrize("samples", ENCODED[:-1])
def test_payloads_in_a_worker_s_memory_are_copied_in_their_order(
    samples: list[Any], gap: int
) -> None:
    samples = [*samples, *samples[::-1], *samples]
    headers, payloads = encoded(samples)
    batch = WarmCollate().of_payloads(headers, placed(payloads, gap))
    assert_same(batch, default_collate(samples))
    shorter = placed([*payloads[:-1], payloads[-1][:-1]], gap)
    assert WarmCollate().of_payloads(headers, shorter) is None


@pytest.mark.parametrize(
    "samples",
    [
        [],
        ENCODED[-1],  # pickled
        [torch.ones(3), torch.ones(2)],
        [torch.ones(3), torch.ones(3, dtype=torch.int64)],
        [{f"{'x' * 8000}": torch.ones(3)}] * 2,  # more than is remembered
    ],
)
def test_samples_of_several_forms_and_of_none_have_to_be_decoded(samples: list[Any]) -> None:
    assert WarmCollate().of_payloads(*encoded(samples)) is None


def test_payloads_that_do_not_fit_are_left_to_who_says_why() -> None:
    headers, payloads = encoded(ENCODED[0])
    assert WarmCollate().of_payloads(headers, [each[:-1] for each in payloads]) is None


@pytest.mark.parametrize("kind", [torch.Tensor, dict])
def test_who_has_changed_torchs_table_gets_samples(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, **_: len(batch))
    assert WarmCollate().of_payloads(*encoded(ENCODED[0])) is None


@USUAL
def test_a_worker_s_batches_are_those_of_default_collate(samples: list[Any]) -> None:
    sizes = [len(samples), 1, len(samples)]
    found = collate_together([*samples, samples[0], *samples], sizes)
    assert found is not None
    due = default_collate(samples)
    assert_same([*map(decoded, found)], [due, default_collate(samples[:1]), due])


def test_large_tensors_are_not_stacked_before_they_are_sent() -> None:
    samples = rows(lambda n: (torch.full((LARGE,), n), torch.full((3,), n)))
    found = collate_together(samples, [3])
    assert found is not None
    whole, *_ = (each for each in found[0][1] if len(each) == samples[0][0].nbytes)
    samples[0][0].fill_(9)
    assert set(np.frombuffer(whole, np.int64)) == {9}


@pytest.mark.parametrize(
    "samples",
    [
        rows(lambda n: torch.zeros(LARGE + n)),
        rows(lambda n: torch.zeros(3 + n)),
        rows(lambda n: torch.full((LARGE,), float(n), requires_grad=True)),
        [torch.ones(2).to_sparse()] * 2,
        [object()] * 2,
        [{"x": 1}, {"y": 1}],
        [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])] * 2,
    ],
)
def test_a_worker_leaves_to_the_trainer_what_cannot_be_sent(samples: list[Any]) -> None:
    assert collate_together(samples, [len(samples)]) is None


@pytest.mark.parametrize("kind", [torch.Tensor, dict])
def test_a_worker_that_has_another_table_makes_no_batch(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, **_: len(batch))
    assert collate_together(ENCODED[0], [3]) is None
