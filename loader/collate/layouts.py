"""Collates samples to one batch, `padded` or `packed`, and copies each payload byte once.

A sample maps field names to numpy arrays, numbers, strings or bytes. Four fields have a meaning:

    input_ids        integer (n,)            tokens
    labels           integer (n,)            aligned with input_ids; -100 where there is no loss
    pixel_values     uint8 (tiles, 3, S, S)  may be absent or have 0 tiles
    tiles_per_image  integer (images,)       goes with pixel_values

Labels are aligned with the tokens and models shift them inside (position i predicts token i + 1),
as Hugging Face models do. Nothing precedes a sample's first token, and in a pack the last token of
the sample before would be asked for it; so the first label of every sample becomes -100, in both
layouts, which also makes both count the same label tokens.

Any other field follows one rule: numbers become a tensor (B,), strings and bytes a list; arrays
are concatenated along their first axis, and `<name>_lengths` int32 (B,) says how long each was.

A microbatch without samples becomes a valid batch of zero weight: one pad token without a label.
A microbatch without images can be given a dummy tile, for encoders that every rank must run (FSDP,
DDP): one zero tile in pixel_values that no entry of tiles_per_image owns. A model runs its encoder
over all tiles, uses the first sum(tiles_per_image) features, and adds 0 * the rest to its output.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...balancer.planning.problem.options import LayoutName
from ...workers.arena.layout import LEAST_IN_SLOT
from ...workers.arena.worker import this_worker
from ...workers.sources.labels import IGNORED

Sample = Mapping[str, Any]
Batch = dict[str, Any]
Array = npt.NDArray[Any]
# Fields that have a meaning of their own; every other one is collated by its kind alone.
KNOWN_FIELDS = frozenset({"input_ids", "labels", "pixel_values", "tiles_per_image"})
_ATTENDED = np.array(1)
NEEDED = ("position_ids", "cu_seq_lens", "max_length")


class _Every(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "EVERY"


# In place of the names of a batch's fields: all of them.
EVERY: Container[str] = _Every()


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array on a buffer of its own, contents undefined; in a worker one to be sent as is.

    Raises OSError where memory is short.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes == 0:  # nothing to hold, and no buffer can be viewed as nothing
        return np.empty(shape, dtype)
    worker = this_worker()
    if worker is None or nbytes < LEAST_IN_SLOT:
        buffer = torch.empty(nbytes, dtype=torch.uint8)
    else:
        buffer = worker.sender.tensor(nbytes)
    return np.ndarray(shape, dtype, buffer.numpy())


def filled_tensor(values: npt.ArrayLike, dtype: npt.DTypeLike) -> torch.Tensor:
    """Return values as a tensor of that dtype, on a buffer of its own."""
    array = empty_array((len(values),) if isinstance(values, list) else np.shape(values), dtype)
    array[...] = values
    return torch.from_numpy(array)


def collate_images(
    samples: Sequence[Sample], dummy_tile: int, fields: Container[str] = EVERY
) -> Batch:
    """Return all tiles in one array, and their owners; empty for data without images.

    fields: the names of what is wanted of it; nothing else is copied.
    """
    tiles = [np.asarray(s["pixel_values"]) for s in samples if "pixel_values" in s]
    if not (tiles or dummy_tile or not samples):
        return {}
    owners = [_tiles_per_image(place, sample) for place, sample in enumerate(samples)]
    batch: Batch = {}
    if "pixel_values" in fields:
        batch["pixel_values"] = _pixels(tiles, dummy_tile)
    if "tiles_per_image" in fields:
        every = np.concatenate([*owners, ()])
        batch["tiles_per_image"] = filled_tensor(every, np.int32)
    if "images_per_sample" in fields:
        counts = [*map(len, owners)] or [0]
        batch["images_per_sample"] = filled_tensor(counts, np.int32)
    return batch


def _pixels(tiles: Sequence[Array], dummy_tile: int) -> torch.Tensor:
    """Return all tiles in one array."""
    held = [array for array in tiles if len(array)]
    if held:
        return _concatenated("pixel_values", held)
    # An encoder under FSDP must run on every rank: a dummy tile gives it something to do.
    side = dummy_tile or (tiles[0].shape[-1] if tiles else 0)
    return filled_tensor(np.zeros((1 if dummy_tile else 0, 3, side, side), np.uint8), np.uint8)


def _tiles_per_image(place: int, sample: Sample) -> Array:
    """Return a sample's tiles_per_image; ValueError where they are not as many as its tiles."""
    owned = np.asarray(sample.get("tiles_per_image", ()), dtype=np.int64)
    pixels = np.asarray(sample.get("pixel_values", ()))
    count = len(pixels) if pixels.ndim else 1
    if count != owned.sum():
        raise ValueError(
            f"sample {place} has {count} tiles in pixel_values, but its tiles_per_image "
            f"{owned.tolist()} makes {owned.sum()}; give one entry per image"
        )
    return owned


def collate_others(samples: Sequence[Sample], fields: Container[str] = EVERY) -> Batch:
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
        batch.update(_field(name, [sample[name] for sample in samples], fields))
    return batch


def _field(name: str, values: list[Any], fields: Container[str]) -> Iterable[tuple[str, Any]]:
    lengths = f"{name}_lengths"
    if all(isinstance(value, np.ndarray) and value.ndim for value in values):
        if name in fields:
            yield name, _concatenated(name, values)
        if lengths in fields:
            yield lengths, filled_tensor([len(value) for value in values], np.int32)
    elif name not in fields:
        return
    elif any(isinstance(value, (str, bytes)) for value in values):
        # Nothing of a batch lies in a payload, which other processes may be reading.
        yield name, [value.copy() if isinstance(value, np.ndarray) else value for value in values]
    else:
        stacked = np.asarray(values)
        yield name, filled_tensor(stacked, stacked.dtype)


def _concatenated(name: str, arrays: list[Array]) -> torch.Tensor:
    """Copy all arrays into one buffer; raise ValueError where shapes do not fit."""
    if len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
        kinds = sorted({f"{array.dtype} {('n', *array.shape[1:])}" for array in arrays})
        raise ValueError(f"field {name!r} comes as {' and '.join(kinds)}; make them all alike")
    joined = empty_array((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    np.concatenate(arrays, out=joined)
    return torch.from_numpy(joined)


def collate_padded(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    fields: Container[str] = EVERY,
) -> Batch:
    """Stack samples as rows, filled up to the longest.

    Gives input_ids, labels, attention_mask int64 (B, longest): pad_id, -100 and 0 in the filling;
    pixel_values uint8 (tiles, 3, S, S), tiles_per_image int32 (images,) and images_per_sample
    int32 (B,); and every other field by the rule above. dummy_tile is the side in pixels of the
    zero tile that a batch without images gets, 0 for none; fields: the names of what is wanted of
    all this. Raises ValueError for samples that do not fit together.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> collate_padded(rows)["input_ids"].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    tokens, labels = _texts(samples, pad_id)
    texts = _padded_texts(tokens, labels, pad_id, fields)
    return {
        **{name: torch.from_numpy(array) for name, array in texts.items()},
        **collate_images(samples, dummy_tile, fields),
        **collate_others(samples, fields),
    }


def _padded_texts(
    tokens: Sequence[Array],
    labels: Sequence[Array],
    pad_id: int,
    fields: Container[str],
) -> dict[str, Array]:
    """Return the wanted fields that follow from tokens and labels, which have been checked."""
    longest = max(map(len, tokens))
    rows: dict[str, Array] = {}
    for name, values, fill in (
        ("input_ids", tokens, pad_id),
        ("labels", labels, IGNORED),
        ("attention_mask", [_ATTENDED] * len(tokens), 0),
    ):
        if name in fields:
            rows[name] = empty_array((len(tokens), longest), np.int64)
            for row, (ids, value) in enumerate(zip(tokens, values, strict=True)):
                rows[name][row, : len(ids)] = value
                rows[name][row, len(ids) :] = fill
    if "labels" in rows:
        rows["labels"][:, :1] = IGNORED
    return rows


def collate_packed(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    fields: Container[str] = EVERY,
) -> Batch:
    """Concatenate samples, without padding.

    Gives input_ids, labels, position_ids int64 (1, total), as Hugging Face models take them
    (positions restart at 0 with every sample); cu_seq_lens int32 (B + 1,) and max_length (an int)
    for flash-attention's varlen functions and the models' cu_seq_lens_q/k and max_length_q/k;
    images as in collate_padded. pad_id is used only for a batch without samples.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> batch = collate_packed(rows)
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["cu_seq_lens"].tolist()
    ([[5, 6, 7, 8]], [[0, 1, 2, 0]], [0, 3, 4])
    """
    tokens, labels = _texts(samples, pad_id)
    return {
        **_packed_texts(tokens, labels, fields),
        **collate_images(samples, dummy_tile, fields),
        **collate_others(samples, fields),
    }


def _packed_texts(
    tokens: Sequence[Array], labels: Sequence[Array], fields: Container[str]
) -> Batch:
    """Return the wanted fields that follow from tokens and labels, which have been checked."""
    lengths = [*map(len, tokens)]
    begins = [*accumulate(lengths, initial=0)]
    batch: Batch = {}
    positions = [*map(np.arange, lengths)]
    for name, parts in (("input_ids", tokens), ("labels", labels), ("position_ids", positions)):
        if name in fields:
            row = empty_array((1, begins[-1]), np.int64)
            np.concatenate(parts, out=row[0], casting="unsafe")
            if name == "labels":
                row[0, begins[:-1]] = IGNORED
            batch[name] = torch.from_numpy(row)
    if "cu_seq_lens" in fields:
        batch["cu_seq_lens"] = filled_tensor(begins, np.int32)
    if "max_length" in fields:
        batch["max_length"] = max(lengths)
    return batch


COLLATE_BY_LAYOUT: dict[LayoutName, Callable[..., Batch]] = {
    "padded": collate_padded,
    "packed": collate_packed,
}


def _texts(samples: Sequence[Sample], pad_id: int) -> tuple[list[Array], list[Array]]:
    """Return tokens and labels of every sample; of one pad token where there is no sample."""
    tokens = [_tokens(sample, place) for place, sample in enumerate(samples)]
    if not tokens:
        return [np.array([pad_id])], [np.array([IGNORED])]
    labels = []
    for place, (sample, ids) in enumerate(zip(samples, tokens, strict=True)):
        targets = np.asarray(sample.get("labels", IGNORED))
        if targets.ndim and targets.shape != ids.shape:
            raise ValueError(
                f"sample {place} has {len(ids)} input_ids and labels of shape {targets.shape}; "
                "labels are aligned with input_ids, with -100 where there is no loss"
            )
        labels.append(targets if targets.ndim else np.full(len(ids), targets))
    return tokens, labels


def _tokens(sample: Sample, place: int) -> Array:
    if type(sample) is not dict and not isinstance(sample, Mapping):
        raise TypeError(
            f"sample {place} is a {type(sample).__name__}, and layouts 'padded' and 'packed' need "
            "dicts with input_ids: return such from the dataset, or use layout='torch' with a "
            "collate_fn"
        )
    if "input_ids" not in sample:
        raise ValueError(
            f"sample {place} has no input_ids (its fields: {', '.join(sorted(sample)) or 'none'}); "
            "give it some in the transform, or use layout='torch' with a collate_fn"
        )
    ids = np.asarray(sample["input_ids"])
    if ids.ndim != 1 or not len(ids):
        raise ValueError(f"sample {place} has input_ids of shape {ids.shape}; use (n,) with n >= 1")
    return ids


def hf_kwargs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keeps the samples of a packed batch apart in a Hugging Face model's forward().

        model(input_ids=batch["input_ids"], labels=batch["labels"], **cp.hf_kwargs(batch))

    position_ids int64 (1, tokens), by which eager and SDPA attention find where samples begin;
    cu_seq_lens_q, cu_seq_lens_k int32 (B + 1,), max_length_q, max_length_k for flash attention; and
    use_cache=False: models keep a cache by default, in training too, and with one they take
    positions that restart for one sequence and attend across (read in transformers 5.23,
    masking_utils.py). No attention mask may be given beside them. Raises ValueError for a batch
    that is not packed.
    """
    missing = [name for name in NEEDED if name not in batch]
    if missing:
        raise ValueError(
            f"the batch has no {', '.join(missing)}, only {', '.join(map(str, batch))[:200]}: give "
            "one of layout 'packed' (Balance(layout='packed') or collate_packed); a padded batch "
            "goes to the model with its attention_mask instead"
        )
    ends, longest = batch["cu_seq_lens"], batch["max_length"]
    return {
        "position_ids": batch["position_ids"],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
