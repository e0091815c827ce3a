"""Checks plain values, as msgpack and JSON give them, against the annotations of a record.

Messages of the wire and JSON objects (jobs, plans) go through the same function, `read_record`, so
there is one place that decides what is accepted and one form of error. msgspec does the comparison
(docs/adr/0011-msgspec-for-records.md). Nothing is converted: a bool is not an int, a float is not
an int, text is not bytes. Only arrays become tuples, and an int is accepted where a float is asked.
"""

import re
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

MAX_INTEGER = (1 << 63) - 1
# An int that fits into 64 bits, whichever sign it has.
Integer = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
# An error may quote what a peer wrote: this much of it.
MAX_PROBLEM_CHARACTERS = 400

_ERROR = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")

T = TypeVar("T")


class ArrayRecord(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A frozen record that travels as the array of its fields, in their order.

    Records inside other records give no field a default: a shorter array would be accepted. They
    cannot be part of a cycle, and there are several of each sample: the collector leaves them out.
    """


def read_record(kind: type[T], values: object, name: str) -> T:
    """Return a record (an ArrayRecord or a dataclass) of a kind, made from plain values.

    Raises ValueError with one line that names the field: "job.plan.ranks: expected int, got str".

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    >>> read_record(Point, {"x": 3}, "point")
    Point(x=3)
    >>> read_record(Point, {"x": True}, "point")
    Traceback (most recent call last):
    ValueError: point.x: expected int, got bool
    """
    try:
        # With bytes among the builtin types, text is not taken for bytes in base64.
        record = msgspec.convert(values, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}{describe_error(kind, str(error))}") from None
    except RecursionError:
        raise ValueError(f"{name}: nested too deep") from None
    unknown = _unknown_field(values, record)
    if unknown:
        raise ValueError(f"{name} has a field {unknown[:MAX_PROBLEM_CHARACTERS]!r} that is unknown")
    return record


def _unknown_field(values: Any, record: object) -> str:
    """Return a key of a JSON object that its dataclass lacks; msgspec ignores those."""
    if not is_dataclass(record):
        return ""
    known = {field.name for field in fields(record)}
    for name, value in values.items():
        if name not in known:
            return str(name)
        if inner := _unknown_field(value, getattr(record, name)):
            return f"{name}.{inner}"
    return ""


def describe_error(kind: Any, error: str) -> str:
    """Return msgspec's error as ".field[3]: problem"; array positions become field names."""
    match = _ERROR.fullmatch(error)
    problem, path = (match["problem"], match["path"] or "") if match else (error, "")
    named = ""
    for name, index in _STEP.findall(path):
        if index.isdecimal() and isinstance(kind, type) and issubclass(kind, ArrayRecord):
            name = kind.__struct_fields__[int(index)]
        named += f".{name}" if name else f"[{index}]"
        kind = _inner(kind, name)
    problem = " ".join(problem.replace("`", "").split())
    return f"{named}: {problem[:1].lower()}{problem[1:MAX_PROBLEM_CHARACTERS]}"


def _inner(kind: Any, name: str) -> Any:
    """Return the type of a record's field, or of a tuple's elements; None for any other."""
    if name:
        return get_type_hints(kind).get(name) if isinstance(kind, type) else None
    return get_args(kind)[0] if get_origin(kind) is tuple else None


# The one place of the version: pyproject.toml reads it here, `counterpoise.__version__` is this.
VERSION = "0.1.0"
