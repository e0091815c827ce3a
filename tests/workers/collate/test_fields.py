"""Fields of samples' own in packed and padded: each kind of value is right, or a clear error."""

import datetime
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from counterpoise.loader import Balance, DataLoader, collate_packed, collate_padded
from counterpoise.loader.step.errors import LoaderError

LAYOUTS: list[Any] = ["packed", "padded"]
COLLATE: dict[str, Callable[..., dict[str, Any]]] = {
    "packed": collate_packed,
    "padded": collate_padded,
}
FLOAT8 = torch.float8_e5m2


class NoArray:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise OverflowError("never an array")


def nested(dtype: torch.dtype, **layout: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], dtype=dtype, **layout)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will leave them out
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def picture(wide: int) -> Image.Image:
    return Image.new("RGB", (wide, 2), (1, 2, 3))


# A field's values in two samples, and what the batch has: a tensor (its lengths with it) or a list.
RIGHT: dict[str, tuple[Any, Any, Any]] = {
    "int": (1, 2, torch.tensor([1, 2])),
    "int and float": (1, 0.5, torch.tensor([1, 0.5], dtype=torch.float64)),
    "bool": (True, False, torch.tensor([True, False])),
    "complex": (1j, 2j, torch.tensor([1j, 2j], dtype=torch.complex128)),
    "float16": (np.float16(1), np.float16(2), torch.tensor([1.0, 2], dtype=torch.float16)),
    "0-d array": (np.array(1), np.array(2), torch.tensor([1, 2])),
    "0-d tensor": (torch.tensor(1), torch.tensor(2), torch.tensor([1, 2])),
    "str": ("a", "b", ["a", "b"]),
    "bytes": (b"a", b"b", [b"a", b"b"]),
    "str or None": ("a", None, ["a", None]),
    "array": (np.ones(2), np.ones(1), (torch.ones(3, dtype=torch.float64), [2, 1])),
    "empty": (np.ones(0, int), np.ones(1, int), (torch.ones(1, dtype=torch.int64), [0, 1])),
    "big-endian": (*np.ones((2, 1), ">i4"), (torch.ones(2, dtype=torch.int32), [1, 1])),
    "long long": (*np.ones((2, 1), np.longlong), (torch.ones(2, dtype=torch.int64), [1, 1])),
    "uint64": (1 << 63, 1 << 63, torch.tensor([1 << 63, 1 << 63], dtype=torch.uint64)),
    "backwards": (np.arange(3)[::-1], np.arange(1), (torch.tensor([2, 1, 0, 0]), [3, 1])),
    "tensor": (torch.ones(2), torch.ones(2), (torch.ones(4), [2, 2])),
    "bf16": (*torch.ones(2, 1).bfloat16(), (torch.ones(2).bfloat16(), [1, 1])),
    "float8": (*torch.ones(2, 1).to(FLOAT8), (torch.ones(2).to(FLOAT8), [1, 1])),
    "with gradient": (torch.ones(1, requires_grad=True), torch.ones(1), (torch.ones(2), [1, 1])),
    "conjugate": (torch.tensor([1j]).conj(), torch.tensor([1j]), (torch.tensor([-1j, 1j]), [1, 1])),
    "list": ([1, 2], [3, 4], (torch.tensor([1, 2, 3, 4]), [2, 2])),
    "ragged list": ([1, 2], [0.5], (torch.tensor([1, 2, 0.5], dtype=torch.float64), [2, 1])),
    "list or none": ([], [[1, 2]], (torch.tensor([[1, 2]]), [0, 1])),
    "list of tensors": ([torch.tensor(1)], [torch.tensor(2)], (torch.tensor([1, 2]), [1, 1])),
    "tuple": ((1, 2), (3,), (torch.tensor([1, 2, 3]), [2, 1])),
    "nan": (float("nan"), float("inf"), torch.tensor([torch.nan, torch.inf]).double()),
    "half a surrogate": ("\ud800", "b", ["\ud800", "b"]),
    "broadcast": (*np.broadcast_to(np.arange(2), (2, 2, 2)), (torch.tensor([[0, 1]] * 4), [2, 2])),
    "unaligned": (*(np.frombuffer(bytes(17), "i8", 1, 1),) * 2, (torch.tensor([0, 0]), [1, 1])),
    "no rows": (np.ones((0, 3)), np.ones((1, 3)), (torch.ones(1, 3).double(), [0, 1])),
    "empty lists": ([], [], (torch.ones(0).double(), [0, 0])),
    "picture": (picture(1), picture(1), (torch.tensor([[[1, 2, 3]]] * 4).byte(), [2, 2])),
    "transposed": (torch.arange(4).view(2, 2).t(), torch.zeros(0, 2).long(),
                   (torch.tensor([[0, 2], [1, 3]]), [2, 0])),
    "expanded": (*(torch.ones(1).expand(2),) * 2, (torch.ones(4), [2, 2])),
}  # fmt: skip
WRONG: dict[str, tuple[Any, Any, str]] = {
    "None": (None, None, "'x' of sample 0 is a NoneType, and .*take numbers"),
    "number or None": (0.5, None, "'x' of sample 1 is a NoneType"),
    "dict": ({"a": 1}, {"a": 1}, "'x' of sample 0 is a dict"),
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 1), "is a date"),
    "function": (len, len, "is a builtin_function"),
    "int of 80 bits": (1 << 80, 1 << 80, "is a int"),
    "int64 and uint64": (-1, 1 << 63, "comes as int64 .* and uint64"),
    "path": (Path("a"), Path("b"), "is a PosixPath"),
    "no array": (NoArray(), NoArray(), "is a NoArray .never an array"),
    "generator": (torch.Generator(), torch.Generator(), "is a Generator"),
    "text or number": ("a", 1, "'x' comes as str in sample 0 and int in sample 1; make them"),
    "lists of int64 and uint64": ([-1], [1 << 63], "comes as int64 .* in sample 0 and uint64"),
    "span": (*np.array([[1], [2]], "m8[s]"), "is a ndarray of timedelta64"),
    "nested": (*(nested(torch.float32),) * 2, "'x' of sample 0 is a Tensor"),
    "jagged": (*(nested(torch.float32, layout=torch.jagged),) * 2, "is a NestedTensor"),
    "quantized": (quantized(), quantized(), "'x' of sample 0 is a Tensor"),
    "pictures of two sizes": (picture(1), picture(2), r"uint8 .'n', 1, 3. in sample 0 and uint8"),
    "objects": (*np.array([[{}], [None]], object), "is a ndarray of object"),
    "times": (*np.array([["2020"], ["2021"]], "M8[D]"), "is a ndarray of datetime64"),
    "longdouble": (*np.ones((2, 1), np.longdouble), "is a ndarray of (float128|longdouble)"),
    "masked": (*np.ma.masked_array([[1], [2]], [[False], [True]]), "is a masked array"),
    "list of text": (["a"], ["b"], "is a list of <U1"),
    "list with None": ([1, None], [1, 2], "is a list of object"),
    "uneven list": ([[1], [1, 2]], [[1]], "is a list whose parts are not alike"),
    "sparse": (torch.ones(2).to_sparse(), torch.ones(2).to_sparse(), "is a Tensor .can't convert"),
    "meta": (*torch.ones(2, 1, device="meta"), "is a Tensor"),
    "number and array": (1, np.ones(2, int), "comes as int64 .. in sample 0 and int64 .'n',. in"),
    "two types": (np.ones(1), np.ones(1, int), "comes as float64 .* and int64 .*make them all"),
    "bf16 and float": (torch.ones(1).bfloat16(), torch.ones(1),
                       "comes as torch.bfloat16 .* and torch.float32"),
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
    assert batch[name].shape == values.shape
    np.testing.assert_array_equal(batch[name].tolist(), values.tolist())
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
    with pytest.raises((TypeError, ValueError), match=message):
        COLLATE[layout](rows)


# --- the same through loaders: without workers, with two, with a balancer

WAYS = {"no workers": 0, "workers": 2, "balancer": 1}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "balancer":
        request.getfixturevalue("through_balancer")
    return str(request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loader_collates_what_is_right(layout: Any, way: str) -> None:
    names = {kind.replace(" ", "_"): value for kind, value in RIGHT.items()}
    given = loader(layout, {name: value[:2] for name, value in names.items()}, WAYS[way])
    batches = list(given)
    given.close()
    assert len(batches) == 2
    for batch in batches:
        for name, (_, _, expected) in names.items():
            check(batch, name, expected)


@pytest.mark.parametrize(
    "kind", ["None", *(pytest.param(k, marks=pytest.mark.long) for k in ("objects", "two types"))]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loader_says_what_it_cannot_collate(layout: Any, kind: str, way: str) -> None:
    one, other, message = WRONG[kind]
    with pytest.raises((TypeError, ValueError, LoaderError), match=message):
        first_batch(loader(layout, {"x": (one, other)}, WAYS[way]))


def first_batch(given: DataLoader[Any, Any]) -> Any:
    try:
        return next(iter(given))
    finally:
        given.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((None, None), "NoneType.*field 'x': NoneType in sample 0"),
        ((np.ones(2), np.ones(3)), "equal size.*field 'x': float64 .'n',. in sample 0"),
        ((1, Path("a")), "PosixPath|field 'x': int in sample 0 and PosixPath in sample 1"),
    ],
)
def test_torchs_own_error_is_told_the_field(values: Any, message: str, way: str) -> None:
    with pytest.raises((TypeError, RuntimeError), match=f"(?s){message}"):
        first_batch(loader("torch", {"x": values}, WAYS[way]))


@pytest.mark.usefixtures("through_balancer")
def test_a_balancers_worker_names_what_it_cannot_send() -> None:
    made = (number for number in range(2))
    with pytest.raises(LoaderError, match=r"TypeError: field 'x'( of sample 0)? is a generator"):
        first_batch(loader("packed", {"x": (made, made)}, 1))


# --- a field that only some samples have


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_field_that_samples_lack_is_named(layout: str) -> None:
    rows: list[dict[Any, Any]] = [{"input_ids": [1], "x": 2}, {"input_ids": [1]}]
    with pytest.raises(ValueError, match=r"'x' is missing in samples \[1\] of 2"):
        COLLATE[layout](rows)
    with pytest.raises(ValueError, match=r"sample 0 has no input_ids \(its fields: 1, x\)"):
        COLLATE[layout]([{1: 2, "x": 3}])


@pytest.mark.parametrize("sample", [lambda row: {"x": row}, lambda row: (row, 1), lambda row: row])
def test_ragged_samples_are_told_to_pad(sample: Any) -> None:
    ragged: Any = [sample(torch.ones(length)) for length in (3, 5)]
    balance = Balance(budgets={"tokens": 9}, samples_per_step=2)
    loader = DataLoader(ragged, shuffle=False, balance=balance, cost={"tokens": [3, 5]})
    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(iter(loader))
    loader.close()
    said = "".join(traceback.format_exception_only(caught.value))
    assert "Samples differ in size: give a collate_fn that pads." in said
