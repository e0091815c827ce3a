"""Count the bytes that a rank's vocabulary passes hold in between."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from counterpoise.sched.runtime.vocabulary.step import VocabularyPart


def held_bytes(part: VocabularyPart) -> int:
    """The bytes that are held between passes now, each storage counted once."""
    tensors = (tensor for item in part.open.values() for tensor in _tensors(item))
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, tuple):
        for one in item:
            yield from _tensors(one)
    elif is_dataclass(item):
        for field in fields(item):
            yield from _tensors(getattr(item, field.name))
