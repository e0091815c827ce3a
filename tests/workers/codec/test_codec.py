"""What goes through the codec comes back; what the codec has not made does not come in."""

import collections
import dataclasses

import hypothesis.extra.numpy as shapes
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.workers.codec.arrays import MOST_JOINED_BYTES, read_arrays
from counterpoise.workers.codec.fields import read_layout
from counterpoise.workers.codec.frames import (
    CodecError,
    decode,
    decode_packed,
    encode,
    encode_packed,
    payload_of,
)
from counterpoise.workers.lending.room import LEAST_BYTES

Pair = collections.namedtuple("Pair", ["image", "label"])


@dataclasses.dataclass
class Record:
    tensor: torch.Tensor
    name: str


def there_and_back(value):
    """Encode, send the header as msgpack, and decode on a writable buffer."""
    header, buffers = encode(value)
    packed = msgpack.unpackb(msgpack.packb(header))
    return decode(packed, payload_of(buffers), allow_object=True)


def same(left, right):
    """Equal in value, type, dtype and shape, all the way down."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert torch.equal(left.nan_to_num(), right.nan_to_num())
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for name in left:
            same(left[name], right[name])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    elif isinstance(left, float) and left != left:
        assert right != right
    else:
        assert left == right


DTYPES = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u4", "<f2", "<f4", "<f8", "<c8"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: shapes.arrays(
        dtype, shapes.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()
fields = st.dictionaries(
    st.text(max_size=8), arrays | numbers | st.text() | st.binary(), max_size=5
)
TENSORS = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
]


@st.composite
def tensors(draw):
    """Tensors of many kinds, some of them views: transposed, sliced, expanded, shared."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    seed = draw(st.integers(0, 1 << 30))
    values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
    tensor = values.to(draw(st.sampled_from(TENSORS)))
    view = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded", "shared"]))
    if view == "transposed" and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if view == "sliced" and tensor.ndim > 0:
        return tensor[..., ::2]
    if view == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor.share_memory_() if view == "shared" else tensor


leaves = tensors() | arrays | numbers | st.text() | st.binary() | st.none() | st.booleans()
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(fields)
def test_fields_come_back(value):
    header, _ = encode(value)
    assert list(header) == ["fields"]
    same(value, there_and_back(value))


@given(structures)
def test_objects_come_back(value):
    same(value, there_and_back(value))


members = st.lists(tensors() | st.integers() | st.floats() | st.booleans(), max_size=6)


def named(members):
    return {f"member {number}": member for number, member in enumerate(members)}


@given(members, st.sampled_from([tuple, list, named]))
def test_what_torch_datasets_give_comes_back_as_from_pickle(members, container):
    value = container(members)
    back = there_and_back(value)
    same(value, back)
    tensors = [each for each in members if isinstance(each, torch.Tensor)]
    huge = [each for each in members if type(each) is int and not -(1 << 63) <= each < 1 << 63]
    known = tensors and not huge and all(each.is_contiguous() for each in tensors)
    header, _ = encode(value)
    assert ("tensors" in header) == bool(known)
    came = list(back.values() if container is named else back)
    for one, other in zip(members, came, strict=True):
        if known and isinstance(one, torch.Tensor):
            assert other.stride() == torch.empty(one.shape, dtype=one.dtype).stride()


def test_samples_of_one_form_have_one_header():
    first, second = (
        encode_packed((torch.full((2, 3), number), number, number / 2)) for number in (1, 2)
    )
    assert first[0] == second[0]
    assert b"tensors" in first[0]


def marked() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.__dict__["source"] = "camera"
    return tensor


@pytest.mark.parametrize(
    "value",
    [
        marked(),
        (torch.ones(2), "text"),
        [torch.ones(2), None],
        (torch.ones(2), 1 << 63),
        {"x": torch.ones(2), 3: 4},
        {"x": (torch.ones(2),)},
        Pair(torch.ones(2), 1),
        [torch.ones(1)] * 2,
        [torch.ones(1) for _ in range(65)],
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, 3).t(),
        (1, 2),
    ],
    ids=str,
)
def test_any_other_form_is_pickled(value):
    assert b"object" in encode_packed(value)[0]


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


def test_an_expanded_tensor_becomes_its_elements():
    (back,) = there_and_back([torch.arange(3).expand(1000, 3)])
    assert back.shape == (1000, 3)
    assert back.is_contiguous()


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


@pytest.mark.parametrize("value", [[1], [torch.ones(1)]])
def test_an_object_is_refused_unless_it_is_allowed(value):
    header, buffers = encode(value)
    with pytest.raises(CodecError, match="another host"):
        decode(header, payload_of(buffers))


@pytest.mark.parametrize(
    "layout",
    [
        None,
        {"a": 1},
        [["x"]],
        [["x", "array"]],
        [[3, "number", 4]],
        [["x", "number", 1 << 63]],
        [["x", "number", True]],
        [["x", "number", "3"]],
        [["x", "pickle", 8]],
        [["x", "array", "|O", [1]]],
        [["x", "array", "<f4", [-1]]],
        [["x", "array", "<f4", [2, 2]]],
        [["x", "array", "<f4", [1 << 40, 1 << 40, 1 << 40]]],
        [["x", "array", "<f4", [0, 1 << 62]]],
        [["x", "array", "<f4", [1.0]]],
        [["x", "array", "<f4", [1] * 9]],
        [["x", "bytes", 9]],
        [["x", "bytes", 7]],
        [["x", "bytes", True]],
        [["x" * 300, "bytes", 8]],
        [["x", "bytes", 8], ["x", "number", 1]],
        [["x", "number", 1]] * 300,
        [["x", "text", 8]],
    ],
)
def test_malformed_fields_are_refused(layout):
    with pytest.raises(CodecError):
        decode({"fields": layout}, b"\xff" * 8)
    with pytest.raises(CodecError):
        decode_packed(msgpack.packb({"fields": layout}), b"\xff" * 8)


@given(st.dictionaries(st.text(max_size=3), arrays, max_size=4))
def test_arrays_that_are_read_at_once_are_read_as_any_fields(value):
    header, _ = encode_packed(value)
    at_once = read_arrays(header)
    assert at_once == read_layout(msgpack.unpackb(header)["fields"])
    assert at_once.nbytes == len(payload_of(encode(value)[1]))


@pytest.mark.parametrize(
    "field", [["y", "number", 3], ["y", "text", 3], ["x", "array", "|u1", [1]]]
)
def test_what_is_not_of_different_arrays_only_is_not_read_at_once(field):
    assert read_arrays(msgpack.packb({"fields": [["x", "array", "|u1", [2]]]})) is not None
    assert read_arrays(msgpack.packb({"fields": [["x", "array", "|u1", [2]], field]})) is None
    assert read_arrays(msgpack.packb({"fields": [], "more": 1})) is None


@pytest.mark.parametrize("shape", [(0, 1 << 41), (1,) * 9])
def test_an_array_that_no_reader_takes_is_not_sent(shape):
    with pytest.raises(CodecError, match="shape"):
        encode_packed({"x": np.ndarray(shape, np.uint8)})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda nest: {"fields": [["x", "array", nest]]},
        lambda nest: {"fields": [["x", "array", "<f4", [nest]]]},
        lambda nest: {"fields": [["x", "bytes", nest]]},
        lambda nest: {"fields": [["x", "number", nest]]},
        lambda nest: {"fields": nest},
        lambda nest: {"object": [nest]},
        lambda nest: {"tensors": nest},
        lambda nest: {"tensors": ["one", [], [nest]]},
        lambda nest: {"tensors": ["one", [], [["uint8", nest]]]},
        lambda nest: {"tensors": ["dict", [nest], [["uint8", [8]]]]},
    ],
)
def test_a_header_as_deep_as_msgpack_reads_is_refused_in_few_words(wrap):
    """repr() of 1,000 nested lists is a RecursionError."""
    header = wrap(msgpack.unpackb(b"\x91" * 1000 + b"\xc0"))
    with pytest.raises(CodecError) as refused:
        decode(header, b"\xff" * 8, allow_object=True)
    assert len(str(refused.value)) < 200


def test_an_endless_kind_is_refused_in_few_words():
    with pytest.raises(CodecError) as refused:
        decode({"fields": [["x", "k" * 1_000_000, 1]]}, b"")
    assert len(str(refused.value)) < 200


@given(
    st.recursive(
        st.integers() | st.text() | st.booleans() | st.none() | st.floats() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.binary(max_size=200),
)
def test_whatever_a_stranger_sends_is_a_codec_error(header, payload):
    for candidate in (header, {"fields": header}, {"fields": [header]}, {"object": header}):
        try:
            decode(candidate, payload)
        except CodecError:
            continue
        assert candidate in ({"fields": []},), candidate


@pytest.mark.parametrize(
    "layout",
    [
        None,
        ["one", [], []],
        ["one", ["x"], [["uint8", [8]]]],
        ["set", [], [["uint8", [8]]]],
        ["dict", [], [["uint8", [8]]]],
        ["tuple", [], [["uint8", [9]]]],
        ["tuple", [], [["uint8", [7]]]],
        ["tuple", [], [["complex64", [1]]]],
        ["tuple", [], [["uint8", [-8]]]],
        ["tuple", [], [["uint8", [True]]]],
        ["tuple", [], [["int", [1]]]],
        ["tuple", [], [["int", []], ["float", []]]],
        ["tuple", [], [["int", []], ["uint8", [0, 1 << 47, 1 << 47]]]],
    ],
    ids=str,
)
def test_malformed_tensors_are_refused(layout):
    with pytest.raises(CodecError):
        decode({"tensors": layout}, b"\xff" * 8, allow_object=True)


@given(fields, st.data())
def test_a_damaged_layout_never_reads_beyond_the_payload(value, data):
    header, buffers = encode(value)
    payload = b"".join(buffers)
    cut = data.draw(st.integers(0, max(0, len(payload) - 1)))
    if payload:
        with pytest.raises(CodecError):
            decode(header, payload[:cut])


@st.composite
def laid_out(draw):
    """Arrays of few names, types and lengths, that come again: in C order, others, or strided."""
    made = {}
    for name in draw(st.lists(st.sampled_from(["ids", "pixels", "n"]), unique=True)):
        dtype = draw(st.sampled_from(["<i4", "|u1", "<f8", "<c16", "|b1"]))
        rows = draw(st.sampled_from([0, 1, 3, 700]))
        array = np.arange(rows * 4).reshape(rows, 4).astype(dtype)
        how = draw(st.sampled_from(["whole", "turned", "some", "flat", "number", "frozen"]))
        made[name] = {
            "whole": array,
            "turned": array.T,
            "some": array[::2, 1:],
            "flat": array.reshape(-1),
            "number": np.array(rows).astype(dtype),
            "frozen": np.frombuffer(array.tobytes(), dtype),
        }[how]
    return made


@given(laid_out())
def test_arrays_in_any_order_are_packed_as_any_fields(value):
    header, buffers = encode(value)
    packed, others = encode_packed(value)
    assert packed == msgpack.packb(header)
    assert b"".join(others) == b"".join(buffers)
    same(value, decode_packed(packed, payload_of(others)))


def test_a_small_payload_is_a_copy_in_one_buffer_and_a_large_one_the_samples_memory():
    small, large = np.zeros(10, np.uint8), np.zeros(MOST_JOINED_BYTES + 1, np.uint8)
    (joined,) = encode_packed({"a": small, "b": small})[1]
    assert type(joined) is bytes
    first, _, second = encode_packed({"a": large, "b": small})[1]
    assert np.shares_memory(np.frombuffer(first, np.uint8), large)
    assert np.shares_memory(np.frombuffer(second, np.uint8), small)
    assert MOST_JOINED_BYTES < LEAST_BYTES  # what a transform was given room for is not copied


@pytest.mark.parametrize("first", [(0, 1 << 41), (1,) * 9])
def test_a_shape_that_no_reader_takes_is_no_error_beside_what_is_pickled(first):
    value = {"x": np.ndarray(first, np.uint8), "y": [1]}
    assert b"object" in encode_packed(value)[0]


class Name(str):
    __slots__ = ()


def test_a_name_that_only_equals_one_that_came_before_is_pickled():
    ids = np.arange(3)
    assert b"fields" in encode_packed({"ids": ids})[0]
    assert b"object" in encode_packed({Name("ids"): ids})[0]
