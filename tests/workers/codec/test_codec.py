"""What goes through the codec comes back."""

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given

from counterpoise.workers.codec.frames import (
    decode,
    encode,
    encode_packed,
    payload_of,
)
from tests.workers.codec.values import (
    Record,
    fields,
    same,
    structures,
    there_and_back,
)


@given(fields)
def test_fields_come_back(value):
    header, _ = encode(value)
    assert list(header) == ["fields"]
    same(value, there_and_back(value))


@given(structures)
def test_objects_come_back(value):
    same(value, there_and_back(value))


@given(fields)
def test_arrays_are_aligned_writable_views(value):
    header, buffers = encode(value)
    room = np.zeros(sum(map(len, buffers)) + 64, np.uint8)
    start = -room.ctypes.data % 64
    payload = room[start : start + sum(map(len, buffers))]
    payload[:] = np.frombuffer(b"".join(buffers), np.uint8)
    for field in decode(header, payload).values():
        if isinstance(field, np.ndarray) and field.size:
            assert field.ctypes.data % 64 == 0
            assert field.flags.writeable
            assert np.shares_memory(field, room)


@given(structures | fields)
def test_packed_as_at_once(value):
    header, buffers = encode(value)
    packed, others = encode_packed(value)
    assert packed == msgpack.packb(header)
    assert b"".join(others) == b"".join(buffers)


def test_metadata_of_a_type_is_kept_though_the_form_came_before():
    plain = np.arange(3, dtype=np.int32)
    marked = plain.view(np.dtype(np.int32, metadata={"unit": "m"}))
    assert b"fields" in encode_packed({"n": plain})[0]
    assert b"object" in encode_packed({"n": marked})[0]


def test_tensors_are_writable_views():
    header, buffers = encode((torch.arange(6).view(2, 3), torch.ones(5, dtype=torch.bfloat16)))
    payload = payload_of(buffers)
    first, second = decode(header, payload, allow_object=True)
    first[0, 0] = 77
    second.zero_()
    again, zeros = decode(header, payload, allow_object=True)
    assert again[0, 0] == 77
    assert not zeros.any()


def test_buffers_are_not_copies():
    image = np.zeros((3, 8, 8), np.uint8)
    _, buffers = encode({"image": image})
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), image)
    tensor = torch.zeros(1000)
    _, buffers = encode([tensor])
    assert any(np.shares_memory(np.frombuffer(b, np.uint8), tensor.numpy()) for b in buffers)


@pytest.mark.filterwarnings("error")
def test_a_read_only_payload_makes_read_only_arrays_and_no_warning():
    header, buffers = encode({"image": np.ones(4)})
    assert not decode(header, b"".join(buffers))["image"].flags.writeable
    header, buffers = encode([torch.ones(4)])
    assert decode(header, b"".join(buffers), allow_object=True)[0].sum() == 4


def test_the_memory_format_stays():
    images = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    (back,) = there_and_back([images])
    assert back.stride() == images.stride()


def test_an_expanded_tensor_stays_one():
    (back,) = there_and_back([torch.arange(3).expand(1000, 3)])
    assert back.tolist() == [[0, 1, 2]] * 1000
    assert back.stride() == (0, 1)


def test_other_tensors_travel_too():
    weight = torch.nn.Parameter(torch.ones(3))
    needs_gradient = torch.ones(2, requires_grad=True)
    sparse = torch.eye(3).to_sparse()
    conjugate = torch.tensor([1 + 2j]).conj()
    back = there_and_back([weight, needs_gradient, sparse, conjugate])
    assert isinstance(back[0], torch.nn.Parameter)
    assert back[1].requires_grad
    assert back[2].is_sparse
    assert back[3].item() == 1 - 2j


def test_a_tensor_that_is_there_twice_stays_one():
    tensor = torch.ones(3)
    first, second = there_and_back([tensor, tensor])
    assert first is second


def test_own_classes_travel_as_objects():
    record = there_and_back(Record(torch.ones(2), "ones"))
    assert record.name == "ones"
    assert record.tensor.tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_back(layout):
    parts = [torch.arange(2.0), torch.arange(3.0)]
    found = there_and_back({"x": torch.nested.nested_tensor(parts, layout=layout)})["x"]
    assert found.layout == layout
    assert all(map(torch.equal, found.unbind(), parts))
