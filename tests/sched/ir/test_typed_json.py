"""JSON into types: the fault is named with its field, however deep it lies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from counterpoise.sched.ir.typed_json import read_json


@dataclass(frozen=True)
class Wheel:
    size: int
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Car:
    wheels: Mapping[str, tuple[Wheel, ...]]
    prices: Mapping[int, int]


def test_a_record_is_read_with_its_defaults() -> None:
    car = read_json('{"wheels": {"front": [{"size": 3}]}, "prices": {"7": 1}}', Car, "it")
    assert car == Car({"front": (Wheel(3),)}, {7: 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the car is not JSON: Expecting property name"),
        ('{"wheels": Infinity}', "the car is not JSON: it has Infinity; give finite numbers"),
        ("3", "the car: it is 3; expected object"),
        ('{"wheels": {}}', "the car: it has no field prices"),
        ('{"wheels": {"a": [], "b": [{"size": 3}, {}]}, "prices": {}}', "wheels.b[1] has no field"),
        ('{"wheels": {"a": [{"size": "3"}]}, "prices": {}}', 'wheels.a[0].size is "3"; expected'),
        (
            '{"wheels": {"a": [{"size": 3, "side": "up"}]}, "prices": {}}',
            'wheels.a[0].side is "up"; expected "left" or "right"',
        ),
        ('{"wheels": {}, "prices": {"1": 1, "x": 1}}', 'prices has the key "x"; expected int'),
        ('{"wheels": {}, "prices": {"1": 1, "2": null}}', "prices.2 is null; expected int"),
        (
            '{"wheels": {"a": [{"size": 3, "hub": 1}]}, "prices": {}}',
            "wheels.a[0] has the unknown field hub; known are size, side",
        ),
        ('{"wheels": {}, "prices": {}, "doors": 4}', "it has the unknown field doors; known are"),
        ('{"wheels": {"a": "%s"}, "prices": {}}' % ("x" * 99), "x ...; expected array"),
    ],
)
def test_a_fault_is_one_line_with_field_and_value(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="the car") as caught:
        read_json(text, Car, "the car")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_only_ints_are_ints(value: Any) -> None:
    text = json.dumps(value)
    with pytest.raises(ValueError, match="expected int"):
        read_json(text, int, "a number")
