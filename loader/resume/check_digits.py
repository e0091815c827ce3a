"""The check digits of a ledger: they tell which of its fields were changed after it was written.

Most fields can be held against each other and against the data (`consistency.py`). Some cannot: a
shuffle's seed, or the samples of a step that could not be used, may be anything. So a ledger ends
with some digits for each field, in the fields' order. States of users' objects are left out: they
are theirs to check, and may come back as other types than they went.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECK = "check"
DIGITS = 8
# What is no part of what a ledger says, or is checked by who reads it first.
_APART = ("version", "kind", CHECK)
# Fields, here or inside readers, that hold states of users' objects: only if there are some counts.
_STATES = ("sampler", "iterator", "dataset")


def with_check_digits(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ledger's values with their check digits.

    >>> with_check_digits({"version": 3, "kind": "plain", "epoch": 7})["check"]
    '805c44bb'
    """
    named = {name: value for name, value in state.items() if name != CHECK}
    return {**named, CHECK: "".join(_digits(name, named[name]) for name in _checked(named))}


def find_changed_field(state: Mapping[str, Any]) -> str:
    """Return the name of a field that is not as it was written, "" if all are."""
    names, digits = _checked(state), state.get(CHECK)
    if not isinstance(digits, str) or len(digits) != DIGITS * len(names):
        return CHECK
    for number, name in enumerate(names):
        if digits[number * DIGITS : (number + 1) * DIGITS] != _digits(name, state[name]):
            return name
    return ""


def _checked(state: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in state if name not in _APART)


def _digits(name: str, value: Any) -> str:
    text = json.dumps([name, _plain(name, value)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGITS // 2).hexdigest()


def _plain(name: str, value: Any) -> Any:
    """Return what is checked of a value: the same before and after JSON, pickle or torch.save."""
    if name in _STATES:
        return value is None
    if isinstance(value, Mapping):
        return {each: _plain(each, inner) for each, inner in value.items()}
    return [_plain("", each) for each in value] if isinstance(value, list | tuple) else value
