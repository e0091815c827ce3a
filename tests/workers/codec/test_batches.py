"""Batches come back from their frames, and what no encoder has made does not come in."""

import copy
import random
from collections import OrderedDict
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from counterpoise.workers.codec import batches
from counterpoise.workers.codec.batches import decode_batch, encode_batch, list_frames
from counterpoise.workers.codec.contents import CodecError
from tests.workers.codec.values import Pair, arrays, numbers, same, tensors

leaves = tensors() | arrays | numbers | st.text() | st.binary() | st.none() | st.booleans()
trees = st.recursive(
    leaves
    | st.lists(numbers, min_size=8)
    | st.integers(1, 600).map(lambda n: torch.arange(float(n)))
    | st.integers(1000, 1100).map(lambda n: "é" * n),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)
BATCH = {
    "ids": torch.arange(500),
    "mask": torch.ones(3, 700, dtype=torch.bool),
    "meta": {"names": ["cat", "t" * 2000], "sizes": ((2, 3), None)},
    "pixels": torch.ones(40, 40, dtype=torch.bfloat16),
    "few": torch.ones(2),
}


def received(frames):
    return [bytearray(frame) for frame in frames]


def sizes_of(frames):
    return [*map(len, frames)]


@given(trees)
def test_batches_come_back(batch):
    frames = encode_batch(batch)
    same(batch, decode_batch(received(frames)))
    assert list_frames(frames[0], sizes_of(frames), None) == [*range(len(frames))]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", batches._TENSORS)
@pytest.mark.parametrize("shape", [(0, 3), (), (2, 3), (40, 50)])
def test_tensors_of_every_type_come_back(name, shape):
    dtype = batches._TENSORS[name]
    octets = torch.zeros((*shape, dtype.itemsize), dtype=torch.uint8)
    octets.random_(0, 2, generator=torch.Generator().manual_seed(1))
    tensor = octets.reshape(-1).view(dtype).view(shape)
    back = decode_batch(received(encode_batch([tensor])))[0]
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), octets.reshape(-1))


def test_numpy_scalars_and_memory_maps_come_back(tmp_path):
    np.arange(600).tofile(tmp_path / "kept")
    value = [np.float32(1.5), np.int64(3), np.memmap(tmp_path / "kept", np.int64)]
    scalar, count, mapped = decode_batch(encode_batch(value))
    assert (type(scalar), scalar, type(count), count) == (np.float32, 1.5, np.int64, 3)
    assert type(mapped) is np.ndarray
    assert mapped[-1] == 599


def test_lists_of_numbers_travel_as_arrays():
    batch = {"ids": [*range(2000)], "big": [1 << 40] * 9, "yes": [True] * 9, "mixed": [1, 2.5] * 9}
    frames = encode_batch(batch)
    assert len(frames) == 2
    assert len(frames[0]) < 600
    same(batch, decode_batch(frames))


def test_large_tensors_are_sent_from_where_they_lie():
    tensor, array = torch.zeros(1000), np.zeros(1000)
    _, *frames = encode_batch({"t": tensor, "a": array})
    assert np.shares_memory(np.frombuffer(frames[0]), tensor.numpy())
    assert np.shares_memory(np.frombuffer(frames[1]), array)


def test_tensors_are_writable_views_of_their_frames():
    frames = received(encode_batch([torch.zeros(1000), torch.ones(3), np.ones(500)]))
    big, small, array = decode_batch(frames)
    big[0], small[0], array[0] = 7, 8, 9
    again = decode_batch(frames)
    assert (again[0][0], again[1][0], again[2][0]) == (7, 8, 9)


def test_a_frame_that_is_read_only_or_not_aligned_is_copied():
    head, frame = encode_batch([torch.zeros(1000)])
    room = bytearray(4001)
    room[1:] = frame
    for other in (bytes(frame), memoryview(room)[1:]):
        (tensor,) = decode_batch([head, other])
        tensor[0] = 7
        assert not any(other)


def test_only_the_frames_of_wanted_fields_are_needed():
    frames = encode_batch(BATCH)
    sizes = sizes_of(frames)
    for wanted in ({"pixels"}, {"ids", "few"}, {"meta"}, {"few"}, set(), {*BATCH}):
        needed = list_frames(frames[0], sizes, wanted)
        here = [frame if n in needed else None for n, frame in enumerate(frames)]
        same({n: v for n, v in BATCH.items() if n in wanted}, decode_batch(here, wanted))
        large = {"ids", "mask", "meta", "pixels"} & wanted
        assert len(needed) == 1 + len(large)


def test_fields_that_are_chosen_are_those_of_the_topmost_dict():
    batch = {"a": {"b": 1, "c": 2}, "b": {"a": 3}}
    assert decode_batch(encode_batch(batch), {"a"}) == {"a": {"b": 1, "c": 2}}
    samples = [{"a": 1}, {"b": 2}]
    assert decode_batch(encode_batch(samples), {"a"}) == samples


def test_a_frame_that_was_left_out_and_is_needed_is_an_error():
    frames = encode_batch(BATCH)
    with pytest.raises(CodecError, match="frame 1 is needed"):
        decode_batch([frames[0], None, *frames[2:]], {"ids"})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "a nested tensor of torch.float32"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "type NestedTensor",
        ),
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.ones(1, requires_grad=True), "requires grad"),
        (lambda: torch.ones(1, device="meta"), "on meta"),
        (lambda: torch.ones((1,) * 9), "of shape"),
        (lambda: torch.nn.Parameter(torch.ones(1)), "type Parameter"),
        (lambda: Pair(1, 2), "type Pair"),
        (lambda: OrderedDict(a=1), "type OrderedDict"),
        (lambda: {b"a": 1}, "b'a' among its keys"),
        (lambda: 1 << 64, "an integer of 65 bits"),
        (lambda: [1 << 64] * 9, r"\[0\] is an integer of 65 bits"),
        (lambda: np.array(["a"]), "array of <U1"),
        (lambda: np.arange(3, dtype=">i4"), "array of >i4"),
        (lambda: np.datetime64("2020-01-01"), "array of datetime64"),
        (object, "type object"),
    ],
)
def test_what_cannot_travel_is_refused_by_the_name_of_its_field(value, why):
    with pytest.raises(TypeError, match=rf"^batch\['x'\]\[1\].*{why}"):
        encode_batch({"x": [1, value()]})


def test_what_is_nested_too_deep_is_refused():
    tree: Any = 1
    for _ in range(batches.MAX_DEPTH):
        tree = [tree]
    assert decode_batch(encode_batch(tree)) == tree
    with pytest.raises(TypeError, match="nested more than 32 deep"):
        encode_batch([tree])
    with pytest.raises(CodecError, match="too deep"):
        decode_batch(framed(nested(batches.MAX_DEPTH + 1)))


def test_too_large_a_tree_is_refused():
    with pytest.raises(ValueError, match="cannot travel"):
        encode_batch([["x" * 250]] * 20_000)


def nested(depth):
    node: Any = 1
    for _ in range(depth):
        node = ["list", node]
    return node


def framed(tree):
    header = msgpack.packb(tree)
    return [len(header).to_bytes(8, "little") + header]


@pytest.mark.parametrize(
    "tree",
    [
        [], ["lisp", 1], {"a": 1}, b"bytes", ["tensor", "qint8", [0]], ["tensor", "float32", [-1]],
        ["tensor", "float32", [True]], ["tensor", "float32", [1] * 9],
        ["tensor", "float32", [0, 1 << 40, 1 << 40]],
        ["tensor", "float32", [1 << 40, 1 << 40, 1 << 40]], ["tensor", "float32", [1]],
        ["tensor", "float32", [1000]], ["tensor", ["float32"], [1]], ["array", "|O", [0]],
        ["array", "<f4", [0, 1 << 41]], ["numbers", "<i8", 3], ["numbers", "<i8", [1 << 40, 0]],
        ["numbers", "<i8", []], ["scalar", "<i8", [0]], ["bytes", "3"], ["str", 1 << 41],
        ["dict", "a"], ["dict", ["a"], 1], ["dict", "a", 1, "a", 2], ["dict", None, 1],
    ],
)  # fmt: skip
def test_malformed_trees_are_refused(tree):
    for wrapped in (tree, ["list", tree], ["dict", "x", tree]):
        frames = framed(wrapped)
        with pytest.raises(CodecError):
            decode_batch(frames)
        with pytest.raises(CodecError):
            list_frames(frames[0], sizes_of(frames), {"y"})


@pytest.mark.parametrize(
    "head", [b"", b"\xff" * 8, bytes(8), bytes(100), (9).to_bytes(8, "little")]
)
def test_a_head_without_a_header_is_refused(head):
    with pytest.raises(CodecError):
        decode_batch([head])
    with pytest.raises(CodecError):
        list_frames(head, [len(head)], None)


@pytest.mark.parametrize("frames", [[], [None], [None, b"x"]])
def test_no_head_is_refused(frames):
    with pytest.raises(CodecError):
        decode_batch(frames)


def test_frames_that_are_not_those_of_the_header_are_refused():
    frames = received(encode_batch(BATCH))
    wrong = (
        frames[:-1],
        [*frames, b"more"],
        [frames[0], frames[2], frames[1], *frames[3:]],
        [frames[0] + b"more", *frames[1:]],
        [frames[0][:-1], *frames[1:]],
        [frames[0], frames[1][:-1], *frames[2:]],
    )
    for some in wrong:
        with pytest.raises(CodecError):
            decode_batch(some)
        with pytest.raises(CodecError):
            list_frames(some[0], sizes_of(some), {"few"})


ODD = (-1, 0, 1, 64, 1 << 40, 1 << 41, 1 << 63, 1.5, True, None, "", "text", "list", "tensor",
       "<f4", "float32", b"", [], ["list"], {})  # fmt: skip


def test_a_changed_header_is_read_as_another_batch_of_these_bytes_or_refused():
    draw, refused = random.Random(5), 0
    whole = encode_batch(BATCH)
    length = int.from_bytes(whole[0][:8], "little")
    for number in range(4000):
        frames = received(whole)
        if number % 2:
            tree = msgpack.unpackb(frames[0][8 : 8 + length])
            change(draw, tree)
            header = msgpack.packb(tree)
            gap = bytes(-(8 + len(header)) % 64)
            rest = frames[0][-(-(8 + length) // 64) * 64 :]
            frames[0] = len(header).to_bytes(8, "little") + header + gap + rest
        else:
            frames[0][draw.randrange(8 + length)] = draw.randrange(256)
        if number % 5 == 0:
            frames[draw.randrange(1, len(frames))] = bytes(draw.randrange(2000))
        reason = why_refused(decode_batch, frames)
        assert len(reason) < 300
        refused += reason != ""
        counted = why_refused(list_frames, frames[0], sizes_of(frames), None)
        # what is wrong in contents shows when they are read: text that is none
        assert not counted or reason
    assert 2000 < refused < 3900


def why_refused(read, *arguments):
    try:
        read(*arguments)
    except CodecError as error:
        return str(error)
    return ""


def change(draw, node):
    """Change one value somewhere in a tree."""
    at = draw.randrange(1 if len(node) > 1 else 0, len(node)) if len(node) else None
    if at is None:
        node.append(copy.deepcopy(draw.choice(ODD)))
    elif isinstance(node[at], list) and node[at] and draw.random() < 0.8:
        change(draw, node[at])
    else:
        node[at] = copy.deepcopy(draw.choice(ODD))
