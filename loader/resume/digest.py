"""The digest of a ledger, which tells whether it was changed after it was written.

Most fields can be held against each other and against the data (`consistency.py`). Some cannot: a
shuffle's seed, or the samples of a step that could not be used, may be anything. States of users'
objects are left out: they are theirs to check, and may come back as other types than they went.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECK = "check"
# What is no part of what a ledger says, or is checked by who reads it first.
_APART = ("version", "kind", CHECK)
# Fields, here or inside readers, that hold states of users' objects: only if there are some counts.
_STATES = ("sampler", "iterator", "dataset")


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ledger's values with their digest.

    >>> is_as_written(with_digest({"version": 3, "kind": "plain", "epoch": 7}))
    True
    """
    named = {name: value for name, value in state.items() if name != CHECK}
    return {**named, CHECK: _digest(named)}


def is_as_written(state: Mapping[str, Any]) -> bool:
    """Return whether no field was changed after the digest was made."""
    return state.get(CHECK) == _digest(state)


def _digest(state: Mapping[str, Any]) -> str:
    named = {name: _plain(name, value) for name, value in state.items() if name not in _APART}
    return hashlib.blake2b(json.dumps(named, sort_keys=True).encode(), digest_size=8).hexdigest()


def _plain(name: str, value: Any) -> Any:
    """Return what is checked of a value: the same before and after JSON, pickle or torch.save."""
    if name in _STATES:
        return value is None
    if isinstance(value, Mapping):
        return {each: _plain(each, inner) for each, inner in value.items()}
    return [_plain("", each) for each in value] if isinstance(value, list | tuple) else value
