"""What is packed is what comes out: values, kinds, shapes, and what shares memory."""

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.workers.arena.packing import pack, unpack


def travel(thing: Any) -> Any:
    """Pack and unpack, with pieces copied as a queue copies small ones."""
    pickled, pieces = pack(thing, None)
    return unpack(bytes(pickled), [bytearray(piece.data) for piece in pieces])


BASE = torch.arange(1000, dtype=torch.float32)
NUMBERS = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.uint16),
]
TENSORS = {
    "whole": torch.arange(12).view(3, 4), "number": torch.tensor(3.5),
    "bfloat16": torch.arange(9, dtype=torch.bfloat16).view(3, 3),
    "complex": torch.tensor([1 + 2j, 3 - 1j]), "flags": torch.tensor([True, False]),
    "float8": torch.ones(4).to(torch.float8_e4m3fn), "transposed": torch.arange(12).view(3, 4).t(),
    "expanded": torch.arange(3).view(3, 1).expand(3, 5),
    "gaps": torch.arange(40).view(4, 10)[:, 2:5], "part": BASE[500:510], "last": BASE[999],
    "empty": torch.zeros(0, 3), "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.tensor([1 + 2j]).conj(), "channels last": torch.arange(24.0)
    .view(1, 2, 3, 4)
    .contiguous(memory_format=torch.channels_last), "parameter": torch.nn.Parameter(torch.ones(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_out_as_it_was(name: str) -> None:
    sent = TENSORS[name]
    found = travel([sent])[0]
    assert type(found) is type(sent)
    assert (found.dtype, found.shape, found.layout) == (sent.dtype, sent.shape, sent.layout)
    assert found.requires_grad == sent.requires_grad
    if sent.layout is torch.strided and sent.numel():
        assert found.stride() == sent.stride()
        kind = torch.float32 if name == "float8" else sent.dtype  # float8 has no equality
        assert torch.equal(found.to(kind), sent.to(kind))
    elif name != "sparse":
        assert torch.equal(found, sent)
    else:
        assert torch.equal(found.to_dense(), sent.to_dense())


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 6, 1), ()])
def test_numbers_of_every_type_come_out_writable(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    sent = torch.arange(6).to(dtype)
    sent = sent.view(shape) if shape else sent[:1].clone().view(())
    found = travel([sent])[0]
    assert found.dtype is dtype
    assert found.stride() == sent.stride()
    assert torch.equal(found, sent)
    found.fill_(1)
    assert found.sum().item() in (max(1, sent.numel()), True)


def test_a_small_part_of_a_large_tensor_travels_alone() -> None:
    pickled, pieces = pack(BASE[500:510], None)
    assert sum(piece.data.nbytes for piece in pieces) == 40
    assert len(pickled) < 400


def test_tensors_that_share_memory_share_it_afterwards() -> None:
    whole = torch.zeros(10)
    found = travel({"all": whole, "end": whole[4:], "other": torch.zeros(10)})
    found["all"][5] = 7
    assert found["end"][1] == 7
    assert found["other"].sum() == 0


def test_arrays_come_out_writable_as_multiprocessing_has_it() -> None:
    fixed = np.frombuffer(b"12345678", np.uint8)
    sent = [np.arange(5.0), fixed, np.arange(12).reshape(3, 4)[:, 1], np.array(["a", None], object)]
    for array, found in zip(sent, travel(sent), strict=True):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        assert found.flags.writeable


def test_whatever_pickle_cannot_take_raises() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pack(lambda: None, None)


def test_packing_leaves_nothing_to_the_garbage_collector() -> None:
    """A slot comes back when its tensor is gone, and not when a cycle has been found."""
    tensor = torch.zeros(100)
    gone = weakref.ref(tensor)
    gc.disable()
    try:
        pack([tensor, tensor[2:]], None)
        del tensor
        assert gone() is None
    finally:
        gc.enable()
