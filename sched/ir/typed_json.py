"""Read JSON text into msgspec structs and dataclasses; errors name the field, value and allowed.

msgspec checks a value against the type annotations and reports the first fault with a path such
as `$.passes[...][0].fixed`, in which the keys of mappings are missing. `read_json` finds those
keys again, so that the error can be "passes.F[0].fixed is -1; expected int >= 0". It also refuses
unknown fields of dataclasses, which msgspec skips.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")
Step = str | int
# An amount, time or size: 0 or more, in 64 bits.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_FAULT = re.compile(r"(?P<fault>.*?)(?: - at (?P<key>`key` in )?`(?P<path>.*)`)?")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|(?P<key>\[\.\.\.\])")
_LONGEST = 60


def read_json(text: str, kind: type[T], what: str) -> T:
    """Return the value of type `kind` that JSON text holds; `what` names the text in errors.

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
        raise ValueError(f"{what} is not JSON: {error}") from None
    try:
        value = _convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {_explain(error, raw, kind)}") from None
    if unknown := _unknown_field(raw, value, []):
        raise ValueError(f"{what}: {unknown}")
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


def _explain(error: msgspec.ValidationError, raw: Any, kind: type) -> str:
    """Return a fault that msgspec found in our words."""
    fault, path, in_key = _split(error)
    steps, node = _follow(path, raw, kind)
    where = _where(steps)
    if in_key:
        key = _guilty_key(raw, kind, node)
        return f"{where} has the key {json.dumps(key)}; {fault.replace('Expected', 'expected')}"
    if expected := re.fullmatch(r"Expected (.*?)(, got .*)?", fault):
        return f"{where} is {_shorten(node)}; expected {expected[1]}"
    if fault.startswith("Invalid enum value"):
        allowed = " or ".join(map(json.dumps, _type_at(kind, steps).values))
        return f"{where} is {_shorten(node)}; expected {allowed}"
    if unknown := re.fullmatch(r"Object contains unknown field (.*)", fault):
        known = [field.encode_name for field in _type_at(kind, steps).fields]
        return _unknown(where, unknown[1], known)
    if missing := re.fullmatch(r"Object missing required field (.*)", fault):
        return f"{where} has no field {missing[1]}"
    # A check of our own, in a __post_init__.
    return f"{where}: {fault}" if steps else fault


def _split(error: msgspec.ValidationError) -> tuple[str, str, bool]:
    """Return the fault, its path, and whether it is in a key of the mapping there.

    msgspec writes "fault - at `path`", or the fault alone if it is in the whole value.
    """
    match = _FAULT.fullmatch(str(error))
    if match is None:
        return str(error), "", False
    return match["fault"].replace("`", ""), match["path"] or "", bool(match["key"])


def _follow(path: str, raw: Any, kind: type) -> tuple[list[Step], Any]:
    """Return the fields, indices and keys on a path, and the value at its end."""
    steps: list[Step] = []
    node = raw
    for match in _STEP.finditer(path):
        if match["key"]:
            step: Step = _guilty_key(raw, kind, node)
        else:
            step = match["field"] or int(match["index"])
        steps.append(step)
        node = node[step]
    return steps, node


def _guilty_key(raw: Any, kind: type, node: dict[str, Any]) -> str:
    """Return the key of `node`, a part of `raw`, whose entry alone causes the same fault."""
    entries = dict(node)
    fault = _path_of_fault(raw, kind)
    guilty = ""
    for key, value in entries.items():
        node.clear()
        node[key] = value
        if _path_of_fault(raw, kind) == fault:
            guilty = key
            break
    node.update(entries)
    return guilty


def _path_of_fault(raw: Any, kind: type) -> tuple[str, bool] | None:
    try:
        _convert(raw, kind)
    except msgspec.ValidationError as error:
        return _split(error)[1:]
    return None


def _unknown_field(raw: Any, value: Any, steps: list[Step]) -> str:
    """Return the error for the first field in `raw` that a dataclass in `value` lacks, or ""."""
    # Raw value and converted one have the same shape, so they are walked side by side.
    inner: list[tuple[Step, Any, Any]] = []
    if is_dataclass(value):
        known = [field.name for field in fields(value)]
        for name in raw:
            if name not in known:
                return _unknown(_where(steps), name, known)
        inner = [(name, raw[name], getattr(value, name)) for name in raw]
    elif isinstance(raw, dict) and isinstance(value, dict):
        inner = list(zip(raw, raw.values(), value.values(), strict=True))
    elif isinstance(raw, list):
        inner = list(zip(range(len(raw)), raw, value, strict=True))
    return next(filter(None, (_unknown_field(r, v, [*steps, s]) for s, r, v in inner)), "")


def _type_at(kind: type, steps: Sequence[Step]) -> Any:
    """Return msgspec's description of the type at the end of a path."""
    info: Any = msgspec.inspect.type_info(kind)
    for step in steps:
        if hasattr(info, "fields"):
            info = next(field.type for field in info.fields if field.encode_name == step)
        elif isinstance(info, msgspec.inspect.TupleType) and isinstance(step, int):
            info = info.item_types[step]
        else:
            info = info.value_type if isinstance(step, str) else info.item_type
    return info


def _where(steps: Sequence[Step]) -> str:
    """Return a path in words: passes.F[0].fixed."""
    words = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return words.removeprefix(".") or "it"


def _unknown(where: str, name: str, known: Sequence[str]) -> str:
    return f"{where} has the unknown field {name}; known are {', '.join(known)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
