"""Moves the tensors of a batch to a device, whatever containers they are in."""

from collections.abc import Mapping
from typing import Any


def moved(value: Any, device: Any, non_blocking: bool = False) -> Any:
    """Return a value with all that has a method `to(device, non_blocking=)` replaced by its result.

    Mappings, lists, tuples and named tuples become new ones of the same type; anything else stays.

    >>> import torch
    >>> batch = {"ids": torch.zeros(2), "names": ["a", "b"]}
    >>> found = moved(batch, "meta")
    >>> found["ids"].device.type, found["names"], batch["ids"].device.type
    ('meta', ['a', 'b'], 'cpu')
    """
    if callable(getattr(value, "to", None)):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Mapping):
        inner: Any = {name: moved(each, device, non_blocking) for name, each in value.items()}
        return inner if type(value) is dict else type(value)(inner)  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        items = [moved(each, device, non_blocking) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
