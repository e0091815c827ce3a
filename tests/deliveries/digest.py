"""A digest of a batch: of its types, shapes, dtypes and bytes, and of nothing else."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def digest(value: Any) -> str:
    """Return a hash of a nested value: of its types, shapes, dtypes and bytes."""
    hasher = hashlib.sha256()
    for part in _parts(value):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        for name in sorted(value):
            yield name.encode()
            yield from _parts(value[name])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        # numpy has no bfloat16, and a tensor of nothing has no bytes to be seen as others
        flat = value.detach().contiguous().flatten()
        yield flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, str | bytes | bool | int | float | None):
        yield f"{type(value).__name__} {value!r}".encode()
    else:
        raise TypeError(f"a delivery has a {type(value).__name__}: say how it is to be hashed")
