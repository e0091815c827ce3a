"""Read JSON text into msgspec structs and dataclasses; errors name the field, value and allowed.

msgspec checks a value against the type annotations, and reports the first fault with a path that
lacks the keys of mappings. `read_json` looks for the innermost part of the value that has a fault,
so that the error can be "passes.F[0].fixed is -1; expected int >= 0". It also refuses unknown
fields of dataclasses, which msgspec skips.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")
Step = str | int
# An amount, time or size: 0 or more, in 64 bits.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_LONGEST = 60


def read_json(text: str, kind: type[T], source: str) -> T:
    """Return the value of type `kind` that JSON text holds; `source` names the text in errors.

    Keys of mappings are converted to ints where the type asks for ints. Raises ValueError, in one
    line, for text that is not JSON, for a value of another type, and for unknown fields.

    >>> read_json('{"a": [1, "x"]}', dict[str, list[int]], "the file")
    Traceback (most recent call last):
    ...
    ValueError: the file: a[1] is "x"; expected int
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"it has {word}; give finite numbers")

    try:
        raw = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    try:
        value = _convert(raw, kind)
    except msgspec.ValidationError:
        raise ValueError(f"{source}: {_explain(raw, kind, [])}") from None
    if unknown := _unknown_field(raw, kind, []):
        raise ValueError(f"{source}: {unknown}")
    return value


def read_json_file(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` in a file. Raises ValueError as `read_json`, with the path.

    Raises OSError if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return read_json(text, kind, str(path))


def _convert(raw: Any, kind: type[T]) -> T:
    return msgspec.convert(raw, kind, str_keys=True)


def _fault(raw: Any, kind: Any) -> str:
    """Return what msgspec says is wrong with a value, "" if nothing is."""
    try:
        _convert(raw, kind)
    except msgspec.ValidationError as error:
        return str(error).replace("`", "")
    return ""


def _explain(raw: Any, kind: Any, steps: list[Step]) -> str:
    """Return the fault of a value in our words: that of its innermost part with one."""
    for step, part, of in _parts(raw, kind):
        if _fault(part, of):
            return _explain(part, of, [*steps, step])
    where, (fault, _, place) = _format_path(steps), _fault(raw, kind).partition(" - at ")
    if place.startswith("key"):
        key = next(key for key in raw if _fault({key: raw[key]}, kind))
        return f"{where} has the key {json.dumps(key)}; {fault.replace('Expected', 'expected')}"
    if expected := re.fullmatch(r"Expected (.*?)(, got .*)?", fault):
        return f"{where} is {_shorten(raw)}; expected {expected[1]}"
    if fault.startswith("Invalid enum value"):
        allowed = " or ".join(map(json.dumps, sorted(get_args(_bare(kind)))))
        return f"{where} is {_shorten(raw)}; expected {allowed}"
    if unknown := re.fullmatch(r"Object contains unknown field (.*)", fault):
        return _unknown(where, unknown[1], _fields(_bare(kind)))
    if missing := re.fullmatch(r"Object missing required field (.*)", fault):
        return f"{where} has no field {missing[1]}"
    # A check of our own, in a __post_init__.
    return f"{where}: {fault}" if steps else fault


def _parts(raw: Any, kind: Any) -> Iterable[tuple[Step, Any, Any]]:
    """Return the step to each part of a value, the part, and its type."""
    kind = _bare(kind)
    of, origin = get_args(kind), get_origin(kind)
    if isinstance(raw, dict):
        if fields := _fields(kind):
            return [(name, raw[name], fields[name]) for name in raw if name in fields]
        return [(key, raw[key], of[1]) for key in raw] if origin in (dict, Mapping) else ()
    if not isinstance(raw, list) or origin not in (tuple, list):
        return ()
    # A tuple may name a type for each part; lists, and tuples of any length, one for all.
    of = of if len(of) > 1 and of[1] is not ... else of[:1] * len(raw)
    return zip(range(len(raw)), raw, of, strict=False)


def _bare(kind: Any) -> Any:
    """Return a type without its bounds, and without None."""
    while get_origin(kind) in (Annotated, UnionType):
        kind = get_args(kind)[0]
    return kind


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a struct or dataclass with their types, {} for other types."""
    has_fields = is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
    return get_type_hints(kind, include_extras=True) if has_fields else {}


def _unknown_field(raw: Any, kind: Any, steps: list[Step]) -> str:
    """Return the error for the first field that a struct or dataclass lacks, "" without any."""
    fields = _fields(_bare(kind))
    if fields and (unknown := [name for name in raw or () if name not in fields]):
        return _unknown(_format_path(steps), unknown[0], fields)
    messages = (_unknown_field(part, of, [*steps, step]) for step, part, of in _parts(raw, kind))
    return next(filter(None, messages), "")


def _format_path(steps: Sequence[Step]) -> str:
    """Return a path in words: passes.F[0].fixed."""
    words = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return words.removeprefix(".") or "it"


def _unknown(where: str, name: str, known: Iterable[str]) -> str:
    return f"{where} has the unknown field {name}; known are {', '.join(known)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
