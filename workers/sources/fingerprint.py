"""Lists the libraries that decide the bytes, and hashes such facts."""

import hashlib
import json
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np


@cache
def library_versions(*names: str) -> dict[str, str]:
    """Return the installed versions of counterpoise, numpy, Pillow and `names`, importing none."""
    versions = {}
    for name in ("counterpoise", "numpy", "pillow", *names):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def digest(facts: Any) -> str:
    """Return 16 hex digits, a hash of JSON-able facts in any order of their keys.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    True
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_arrays(text: bytes, *arrays: np.ndarray[Any, Any]) -> str:
    """Return 16 hex digits, a hash of bytes and of the contents of arrays."""
    state = hashlib.blake2b(text, digest_size=8)
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
