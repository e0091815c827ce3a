"""Read JSON text into msgspec types; an error names the field, its value and what is allowed.

msgspec checks a value against the type annotations and reports the first fault with a path such
as `$.passes[...][0].fixed`, in which the keys of mappings are missing. `read_json` finds those
keys again, so that the error can say "passes.F[0].fixed is -1; expected int >= 0".
"""

import json
import re
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|(?P<key>\[\.\.\.\])")
_LONGEST = 60


def read_json(text: str, kind: type[T], what: str) -> T:
    """Return the value of type `kind` that JSON text holds; `what` names the text in errors.

    Raises ValueError, in one line, for text that is not JSON and for a value of another type.

    >>> read_json('{"a": [1, "x"]}', dict[str, list[int]], "the file")
    Traceback (most recent call last):
    ...
    ValueError: the file: a[1] is "x"; expected int
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{what} has {word}, which is not JSON; give finite numbers")

    try:
        raw = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {_explain(error, raw, kind)}") from None


def _explain(error: msgspec.ValidationError, raw: Any, kind: type) -> str:
    fault, path = _split(error)
    steps, node = _follow(path, raw, kind)
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    where = where.removeprefix(".") or "it"
    if expected := re.fullmatch(r"Expected (.*?)(, got .*)?", fault):
        value = json.dumps(node)
        value = value if len(value) <= _LONGEST else value[:_LONGEST] + " ..."
        return f"{where} is {value}; expected {expected[1]}"
    if unknown := re.fullmatch(r"Object contains unknown field (.*)", fault):
        known = _fields(msgspec.inspect.type_info(kind), steps)
        return f"{where} has the unknown field {unknown[1]}; known are {', '.join(known)}"
    if missing := re.fullmatch(r"Object missing required field (.*)", fault):
        return f"{where} has no field {missing[1]}"
    # A check of our own, in a __post_init__.
    return fault if where == "it" else f"{where}: {fault}"


def _split(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the fault and its path; msgspec writes "fault - at `path`", without it at the top."""
    fault, _, path = str(error).partition(" - at `")
    return fault.replace("`", ""), path.removesuffix("`")


def _follow(path: str, raw: Any, kind: type) -> tuple[list[str | int], Any]:
    """Return the fields, indices and keys on a path, and the value at its end."""
    steps: list[str | int] = []
    node = raw
    for match in _STEP.finditer(path):
        step = match["field"] or (int(match["index"]) if match["index"] else "")
        if match["key"]:
            step = _guilty_key(path, raw, kind, node)
        steps.append(step)
        node = node[step]
    return steps, node


def _guilty_key(path: str, raw: Any, kind: type, node: dict[str, Any]) -> str:
    """Return the key of `node` that causes the fault: the one that causes it alone, too."""
    entries = dict(node)
    for key in entries:
        node.clear()
        node[key] = entries[key]
        try:
            msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            if _split(error)[1] == path:
                break
    node.update(entries)
    return key


def _fields(info: Any, steps: list[str | int]) -> list[str]:
    """Return the names of the fields of the record at the end of a path."""
    for step in steps:
        if isinstance(info, msgspec.inspect.StructType):
            info = next(field.type for field in info.fields if field.encode_name == step)
        else:
            info = info.value_type if isinstance(step, str) else info.item_type
    return [field.encode_name for field in info.fields]
