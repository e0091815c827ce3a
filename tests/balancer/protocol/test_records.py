"""Plain values against annotations: what fits becomes a record, anything else names its field."""

from dataclasses import dataclass
from typing import Any

import pytest

from counterpoise.balancer.protocol.records import ArrayRecord, Integer, read_record


class Inner(ArrayRecord, frozen=True):
    number: Integer
    raw: bytes


class Outer(ArrayRecord, frozen=True):
    inner: tuple[Inner, ...]
    flag: bool


@dataclass(frozen=True, slots=True)
class Part:
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Whole:
    part: Part | None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError("weight is negative")


def test_arrays_become_records_and_tuples() -> None:
    assert read_record(Outer, [[[1, b"x"]], True], "it") == Outer((Inner(1, b"x"),), True)


def test_objects_become_dataclasses() -> None:
    assert read_record(Whole, {"part": {"sizes": [1]}, "weight": 2}, "it") == Whole(Part((1,)), 2.0)
    assert read_record(Whole, {"part": None}, "it") == Whole(None)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[], 1], "it.flag: expected bool, got int"),
        ([[], True, 1], "it: expected array of at most length 2, got 3"),
        ([[[1]], True], r"it.inner\[0\]: expected array of at least length 2, got 1"),
        ([[[1, b""], [1.0, b""]], True], r"it.inner\[1\].number: expected int, got float"),
        ([[[-(1 << 63), b""]], True], r"it.inner\[0\].number: expected int >= -9\d{18}"),
        ([[[1, "eA=="]], True], r"it.inner\[0\].raw: expected bytes, got str"),
        ({"inner": [], "flag": True}, "it: expected array, got object"),
        (None, "it: expected array, got null"),
    ],
)
def test_an_error_names_a_field_of_an_array(values: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        read_record(Outer, values, "it")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "it: object missing required field part"),
        ({"part": {"sizes": [1, None]}}, r"it.part.sizes\[1\]: expected int, got null"),
        ({"part": {"size": 1}}, "it has a field 'part.size' that is unknown"),
        ({"part": None, "weight": -1}, "it: weight is negative"),
        ([None], "it: expected object, got array"),
    ],
)
def test_an_error_names_a_field_of_an_object(values: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        read_record(Whole, values, "it")


def test_an_error_is_one_line_of_bounded_length() -> None:
    with pytest.raises(ValueError, match="it") as caught:
        read_record(Whole, {"part": None, "x\n" * 10_000: 1}, "it")
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
