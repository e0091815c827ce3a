"""Collates the fields that both layouts treat alike: images, and fields of the user's own."""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...workers.arena.layout import LEAST_IN_SLOT
from ...workers.arena.worker import this_worker

Sample = Mapping[str, Any]
Batch = dict[str, Any]
Array = npt.NDArray[Any]
# Called once per tensor; returns a writable buffer of that many bytes, aligned to 8 bytes.
Allocate = Callable[[int], Any]


class _Every(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "EVERY"


# In place of the names of a batch's fields: all of them.
EVERY: Container[str] = _Every()

# Fields that have a meaning of their own; every other one is collated by its kind alone.
KNOWN_FIELDS = frozenset({"input_ids", "labels", "pixel_values", "tiles_per_image"})


def allocate_tensor(nbytes: int) -> Array:
    """Return a new writable buffer of nbytes bytes; in a torch worker one that need not be copied.

    Raises OSError where memory is short.
    """
    worker = this_worker()
    if worker is None or nbytes < LEAST_IN_SLOT:
        buffer: Array = torch.empty(nbytes, dtype=torch.uint8).numpy()
        return buffer
    return worker.sender.tensor(nbytes).numpy()


def empty_array(allocate: Allocate, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of that shape on a buffer of its own, contents undefined."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes == 0:  # nothing to hold, and no buffer can be viewed as nothing
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, allocate(nbytes))


def filled_array(allocate: Allocate, values: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    """Return values as an array of that dtype, on a buffer of its own."""
    shape = (len(values),) if isinstance(values, list) else np.shape(values)
    array = empty_array(allocate, shape, dtype)
    array[...] = values
    return array


def filled_tensor(allocate: Allocate, values: npt.ArrayLike, dtype: npt.DTypeLike) -> torch.Tensor:
    """Return values as a tensor of that dtype, on a buffer of its own."""
    return torch.from_numpy(filled_array(allocate, values, dtype))


def collate_images(
    samples: Sequence[Sample], dummy_tile: int, allocate: Allocate, fields: Container[str] = EVERY
) -> Batch:
    """Return all tiles in one array, and their owners; empty for data without images.

    fields: the names of what is wanted of it; nothing else is copied.
    """
    tiles = [np.asarray(s["pixel_values"]) for s in samples if "pixel_values" in s]
    if not (tiles or dummy_tile or not samples):
        return {}
    owners = _owners(samples)
    batch: Batch = {}
    if "pixel_values" in fields:
        batch["pixel_values"] = _pixels(tiles, dummy_tile, allocate)
    if "tiles_per_image" in fields:
        every = np.concatenate([*owners, ()])
        batch["tiles_per_image"] = filled_tensor(allocate, every, np.int32)
    if "images_per_sample" in fields:
        counts = [*map(len, owners)] or [0]
        batch["images_per_sample"] = filled_tensor(allocate, counts, np.int32)
    return batch


def _pixels(tiles: Sequence[Array], dummy_tile: int, allocate: Allocate) -> torch.Tensor:
    """Return all tiles in one array."""
    held = [array for array in tiles if len(array)]
    if held:
        return _concatenated("pixel_values", held, allocate)
    side = tiles[0].shape[-1] if tiles else 0
    return torch.from_numpy(no_pixels(dummy_tile, side, allocate))


def no_pixels(dummy_tile: int, side: int, allocate: Allocate) -> Array:
    """Return the pixels of a batch without images, whose tiles would have sides of that length."""
    # An encoder under FSDP must run on every rank: a dummy tile gives it something to do.
    side = dummy_tile or side
    blank = np.zeros((1 if dummy_tile else 0, 3, side, side), np.uint8)
    return filled_array(allocate, blank, np.uint8)


def _owners(samples: Sequence[Sample]) -> list[Array]:
    """Return the tiles_per_image of samples; ValueError where they are not as many as tiles."""
    owners = [np.asarray(s.get("tiles_per_image", ()), dtype=np.int64) for s in samples]
    if all(owned.ndim == 1 for owned in owners):
        # All at once: one by one is a good part of what collating costs.
        counts = [_tiles(s) for s in samples]
        joined = np.concatenate([np.zeros(1, np.int64), *owners])
        ends = np.cumsum([0, *map(len, owners)])
        if np.array_equal(np.diff(np.cumsum(joined)[ends]), counts):
            return owners
    return [_tiles_per_image(place, sample) for place, sample in enumerate(samples)]


def _tiles(sample: Sample) -> int:
    """Return the number of a sample's tiles."""
    pixels = np.asarray(sample.get("pixel_values", ()))
    return len(pixels) if pixels.ndim else 1


def _tiles_per_image(place: int, sample: Sample) -> Array:
    """Return a sample's tiles_per_image; ValueError where they are not as many as its tiles."""
    owned = np.asarray(sample.get("tiles_per_image", ()), dtype=np.int64)
    count = _tiles(sample)
    if count != owned.sum():
        raise ValueError(
            f"sample {place} has {count} tiles in pixel_values, but its tiles_per_image "
            f"{owned.tolist()} makes {owned.sum()}; give one entry per image"
        )
    return owned


def collate_others(
    samples: Sequence[Sample], allocate: Allocate, fields: Container[str] = EVERY
) -> Batch:
    """Return every field without a meaning of its own, collated by its kind.

    fields: the names of what is wanted of it; nothing else is copied.
    """
    names = {name: None for sample in samples for name in sample if name not in KNOWN_FIELDS}
    batch: Batch = {}
    for name in names:
        missing = [place for place, sample in enumerate(samples) if name not in sample]
        if missing:
            raise ValueError(
                f"field {name!r} is missing in samples {missing} of {len(samples)}; "
                "give it to every sample, or to none"
            )
        batch.update(_field(name, [sample[name] for sample in samples], allocate, fields))
    return batch


def _field(
    name: str, values: list[Any], allocate: Allocate, fields: Container[str]
) -> Iterable[tuple[str, Any]]:
    lengths = f"{name}_lengths"
    if all(isinstance(value, np.ndarray) and value.ndim for value in values):
        if name in fields:
            yield name, _concatenated(name, values, allocate)
        if lengths in fields:
            yield lengths, filled_tensor(allocate, [len(value) for value in values], np.int32)
    elif name not in fields:
        return
    elif any(isinstance(value, (str, bytes)) for value in values):
        # Nothing of a batch lies in a payload, which other processes may be reading.
        yield name, [value.copy() if isinstance(value, np.ndarray) else value for value in values]
    else:
        stacked = np.asarray(values)
        yield name, filled_tensor(allocate, stacked, stacked.dtype)


def _concatenated(name: str, arrays: list[Array], allocate: Allocate) -> torch.Tensor:
    """Copy all arrays into one buffer; raise ValueError where shapes do not fit."""
    if len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
        kinds = sorted({f"{array.dtype} {('n', *array.shape[1:])}" for array in arrays})
        raise ValueError(f"field {name!r} comes as {' and '.join(kinds)}; make them all alike")
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return torch.from_numpy(joined_array(arrays, shape, allocate))


def joined_array(arrays: Sequence[Array], shape: tuple[int, ...], allocate: Allocate) -> Array:
    """Copy arrays of one type, whole or flat, into one buffer; `shape` is that of all of them."""
    joined = empty_array(allocate, shape, arrays[0].dtype)
    np.concatenate(arrays, out=joined if arrays[0].ndim == len(shape) else joined.reshape(-1))
    return joined
