"""Fields of samples' own in packed and padded: each kind of value is right, or a clear error."""

import datetime
import decimal
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.loader import Balance, DataLoader, collate_packed, collate_padded
from counterpoise.loader.step.errors import LoaderError

LAYOUTS: list[Any] = ["packed", "padded"]
COLLATE: dict[str, Callable[..., dict[str, Any]]] = {
    "packed": collate_packed,
    "padded": collate_padded,
}
SPARSE = torch.ones(2).bfloat16().to_sparse()
FLOAT8 = torch.float8_e5m2
# A field's values in two samples, and what the batch has: a tensor (its lengths with it) or a list.
RIGHT: dict[str, tuple[Any, Any, Any]] = {
    "int": (1, 2, torch.tensor([1, 2])),
    "int and float": (1, 0.5, torch.tensor([1, 0.5], dtype=torch.float64)),
    "bool": (True, False, torch.tensor([True, False])),
    "complex": (1j, 2j, torch.tensor([1j, 2j], dtype=torch.complex128)),
    "float16": (np.float16(1), np.float16(2), torch.tensor([1.0, 2], dtype=torch.float16)),
    "0-d array": (np.array(1), np.array(2), torch.tensor([1, 2])),
    "0-d tensor": (torch.tensor(1), torch.tensor(2), torch.tensor([1, 2])),
    "0-d bf16": (*torch.ones(2).bfloat16(), torch.ones(2).bfloat16()),
    "str": ("a", "b", ["a", "b"]),
    "bytes": (b"a", b"b", [b"a", b"b"]),
    "str or None": ("a", None, ["a", None]),
    "array": (np.ones(2), np.ones(1), (torch.ones(3, dtype=torch.float64), [2, 1])),
    "empty": (np.ones(0, int), np.ones(1, int), (torch.ones(1, dtype=torch.int64), [0, 1])),
    "big-endian": (*np.ones((2, 1), ">i4"), (torch.ones(2, dtype=torch.int32), [1, 1])),
    "long long": (*np.ones((2, 1), np.longlong), (torch.ones(2, dtype=torch.int64), [1, 1])),
    "uint64": (1 << 63, 1 << 63, torch.tensor([1 << 63, 1 << 63], dtype=torch.uint64)),
    "uint16": (*np.ones((2, 1), np.uint16), (torch.ones(2, dtype=torch.uint16), [1, 1])),
    "backwards": (np.arange(3)[::-1], np.arange(1), (torch.tensor([2, 1, 0, 0]), [3, 1])),
    "tensor": (torch.ones(2), torch.ones(2), (torch.ones(4), [2, 2])),
    "ragged tensor": (torch.ones(2, 3), torch.ones(1, 3), (torch.ones(3, 3), [2, 1])),
    "bf16": (*torch.ones(2, 1).bfloat16(), (torch.ones(2).bfloat16(), [1, 1])),
    "float8": (*torch.ones(2, 1).to(FLOAT8), (torch.ones(2).to(FLOAT8), [1, 1])),
    "with gradient": (torch.ones(1, requires_grad=True), torch.ones(1), (torch.ones(2), [1, 1])),
    "conjugate": (torch.tensor([1j]).conj(), torch.tensor([1j]), (torch.tensor([-1j, 1j]), [1, 1])),
    "list": ([1, 2], [3, 4], (torch.tensor([1, 2, 3, 4]), [2, 2])),
    "ragged list": ([1, 2], [0.5], (torch.tensor([1, 2, 0.5], dtype=torch.float64), [2, 1])),
    "list or none": ([], [[1, 2]], (torch.tensor([[1, 2]]), [0, 1])),
    "list of tensors": ([torch.tensor(1)], [torch.tensor(2)], (torch.tensor([1, 2]), [1, 1])),
    "tuple": ((1, 2), (3,), (torch.tensor([1, 2, 3]), [2, 1])),
    "range": (range(2), range(1), (torch.tensor([0, 1, 0]), [2, 1])),
    "bytearray": (bytearray(b"a"), bytearray(b"b"), (torch.tensor([97, 98]).byte(), [1, 1])),
}  # fmt: skip
WRONG: dict[str, tuple[Any, Any, str]] = {
    "None": (None, None, "'x' of sample 0 is a NoneType, and .*take numbers"),
    "number or None": (0.5, None, "'x' of sample 1 is a NoneType"),
    "dict": ({"a": 1}, {"a": 1}, "'x' of sample 0 is a dict"),
    "mapping": (UserDict(a=1), UserDict(a=1), "is a UserDict"),
    "set": ({1}, {1}, "is a set"),
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 1), "is a date"),
    "decimal": (decimal.Decimal(1), decimal.Decimal(1), "is a Decimal"),
    "function": (len, len, "is a builtin_function"),
    "int of 80 bits": (1 << 80, 1 << 80, "is a int"),
    "int64 and uint64": (-1, 1 << 63, "comes as int64 .* and uint64"),
    "objects": (*np.array([[{}], [None]], object), "is a ndarray of object"),
    "times": (*np.array([["2020"], ["2021"]], "M8[D]"), "is a ndarray of datetime64"),
    "array of text": (np.array(["a"]), np.array(["b"]), "is a ndarray of <U1"),
    "record": (*np.zeros((2, 1), [("a", int)]), "is a ndarray of "),
    "longdouble": (*np.ones((2, 1), np.longdouble), "is a ndarray of (float128|longdouble)"),
    "masked": (*np.ma.masked_array([[1], [2]], [[False], [True]]), "is a masked array"),
    "list of text": (["a"], ["b"], "is a list of <U1"),
    "list with None": ([1, None], [1, 2], "is a list of object"),
    "list of dicts": ([{}], [{}], "is a list of object"),
    "uneven list": ([[1], [1, 2]], [[1]], "is a list whose parts are not alike"),
    "sparse": (torch.ones(2).to_sparse(), torch.ones(2).to_sparse(), "is a Tensor .can't convert"),
    "sparse bf16": (SPARSE, SPARSE, "is a Tensor"),
    "meta": (*torch.ones(2, 1, device="meta"), "is a Tensor"),
    "number and array": (1, np.ones(2, int), "comes as int64 .'n',. and int64 ..;"),
    "two types": (np.ones(1), np.ones(1, int), "comes as float64 .* and int64 .*make them all"),
    "bf16 and float": (torch.ones(1).bfloat16(), torch.ones(1), "comes as torch.bfloat16 and as"),
    "other shapes": (np.ones((1, 2)), np.ones((1, 3)), "comes as .*2.* and .*3"),
}  # fmt: skip


class Data:
    """Four samples with fields of their own, which alternate between two values."""

    def __init__(self, fields: dict[str, tuple[Any, Any]]) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        own = {name: values[index % 2] for name, values in self.fields.items()}
        return {"input_ids": np.arange(5), **own}


def loader(layout: Any, fields: dict[str, tuple[Any, Any]], workers: int) -> DataLoader[Any, Any]:
    return DataLoader(
        Data(fields), shuffle=False, num_workers=workers, cost={"tokens": [5] * 4},
        balance=Balance("fixed", layout=layout), batch_size=2,
    )  # fmt: skip


def check(batch: dict[str, Any], name: str, expected: Any) -> None:
    """Check a field of a batch of both of a kind's values."""
    if isinstance(expected, list):
        assert batch[name] == expected
        return
    values, lengths = expected if isinstance(expected, tuple) else (expected, None)
    assert batch[name].dtype == values.dtype
    assert batch[name].tolist() == values.tolist()
    assert (f"{name}_lengths" in batch) == (lengths is not None)
    assert lengths is None or batch[f"{name}_lengths"].tolist() == lengths


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", RIGHT)
def test_a_kind_becomes_a_tensor_or_a_list(layout: str, kind: str) -> None:
    one, other, expected = RIGHT[kind]
    rows = [{"input_ids": np.arange(5), "x": each} for each in (one, other)]
    check(COLLATE[layout](rows), "x", expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_no_tensor_can_hold_is_refused_by_name(layout: str, kind: str) -> None:
    one, other, message = WRONG[kind]
    rows = [{"input_ids": np.arange(5), "x": each} for each in (one, other)]
    for _ in range(20):  # it was memory read as addresses, which not always ended the process
        with pytest.raises((TypeError, ValueError), match=message):
            COLLATE[layout](rows)


# What a worker cannot send, whatever the layout: pickle refuses it.
UNSENT = {"with gradient"}


def check_all_kinds(layout: Any, workers: int) -> None:
    kinds = {kind: value for kind, value in RIGHT.items() if kind not in UNSENT}
    names = {kind.replace(" ", "_"): value for kind, value in kinds.items()}
    given = loader(layout, {name: value[:2] for name, value in names.items()}, workers)
    batches = list(given)
    given.close()
    assert len(batches) == 2
    for batch in batches:
        for name, (_, _, expected) in names.items():
            check(batch, name, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_workers_collate_every_kind_as_a_process_alone(layout: Any) -> None:
    check_all_kinds(layout, workers=2)


@pytest.mark.usefixtures("through_balancer")
def test_a_balancer_brings_every_kind_as_it_is() -> None:
    check_all_kinds("packed", workers=1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", WRONG)
def test_a_loader_says_what_it_cannot_collate(kind: str, workers: int) -> None:
    check_refused("padded", kind, workers)


@pytest.mark.usefixtures("through_balancer")
@pytest.mark.parametrize("kind", ["None", "objects", "sparse bf16"])
def test_so_it_does_with_a_balancer(kind: str) -> None:
    check_refused("packed", kind, workers=1)


def check_refused(layout: Any, kind: str, workers: int) -> None:
    one, other, message = WRONG[kind]
    given = loader(layout, {"x": (one, other)}, workers)
    with pytest.raises((TypeError, ValueError, LoaderError), match=message):
        next(iter(given))
    given.close()


# --- names that a layout makes itself


def tokenized(count: int, **changes: Any) -> dict[str, Any]:
    """Return a sample as a tokenizer makes it."""
    own = {
        "attention_mask": np.ones(count, int), "position_ids": list(range(count)),
        "cu_seq_lens": torch.tensor([0, count]), "max_length": 512, "images_per_sample": 0,
    }  # fmt: skip
    return {"input_ids": list(range(1, count + 1)), **own, **changes}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tokenizers_own_fields_change_nothing_of_the_batch(layout: str) -> None:
    rows = [tokenized(3), tokenized(2)]
    found = COLLATE[layout](rows)
    expected = COLLATE[layout]([{"input_ids": row["input_ids"]} for row in rows])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_mask", [1, 1, 0]),
        ("attention_mask", [[1, 1, 1]]),
        ("position_ids", [0, 1, 0]),
        ("position_ids", np.zeros((3, 3), int)),
        ("cu_seq_lens", [0, 2, 3]),
        ("images_per_sample", 2),
    ],
)
def test_one_that_says_otherwise_is_refused(layout: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"sample 1 has {name} of its own.*another name"):
        COLLATE[layout]([tokenized(2), tokenized(3, **{name: value})])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_name_that_lengths_have_is_refused(layout: str) -> None:
    row = {"input_ids": [1], "boxes": np.ones(2), "boxes_lengths": 2}
    with pytest.raises(ValueError, match=r"'boxes_lengths', which is the name of the lengths of"):
        COLLATE[layout]([row])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [1.0, 2.5]}, "input_ids of float64; use whole numbers"),
        ({"input_ids": [1, None]}, "'input_ids' of sample 0 is a list of object"),
        ({"labels": [1.0, 2.0]}, "labels float64 of shape"),
        ({"labels": 1}, r"labels int64 of shape \(\); labels are aligned with input_ids"),
        ({"labels": None}, "'labels' of sample 0 is a NoneType"),
        ({"pixel_values": None}, "'pixel_values' of sample 0 is a NoneType"),
        ({"pixel_values": 3, "tiles_per_image": [1]}, r"pixel_values of shape \(\)"),
        ({"pixel_values": np.ones((1, 3, 2, 2)), "tiles_per_image": [1.0]}, "use whole numbers"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_known_fields_are_of_their_type(layout: str, changes: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        COLLATE[layout]([{"input_ids": [1, 2], **changes}])
