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

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

import numpy as np
import torch

from ...balancer.planning.problem.options import LayoutName
from ...workers.sources.labels import IGNORED
from .fields import (
    EVERY,
    Allocate,
    Array,
    Batch,
    Sample,
    allocate_tensor,
    collate_images,
    collate_others,
    empty_array,
    filled_tensor,
)


def collate_padded(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    allocate: Allocate = allocate_tensor,
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
    texts = _padded_texts(tokens, labels, pad_id, allocate, fields)
    return {
        **{name: torch.from_numpy(array) for name, array in texts.items()},
        **collate_images(samples, dummy_tile, allocate, fields),
        **collate_others(samples, allocate, fields),
    }


def _padded_texts(
    tokens: Sequence[Array],
    labels: Sequence[Array],
    pad_id: int,
    allocate: Allocate,
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
            rows[name] = empty_array(allocate, (len(tokens), longest), np.int64)
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
    allocate: Allocate = allocate_tensor,
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
        **_packed_texts(tokens, labels, allocate, fields),
        **collate_images(samples, dummy_tile, allocate, fields),
        **collate_others(samples, allocate, fields),
    }


def _packed_texts(
    tokens: Sequence[Array], labels: Sequence[Array], allocate: Allocate, fields: Container[str]
) -> Batch:
    """Return the wanted fields that follow from tokens and labels, which have been checked."""
    lengths = [*map(len, tokens)]
    begins = [*accumulate(lengths, initial=0)]
    batch: Batch = {}
    for name in ("input_ids", "labels", "position_ids"):
        if name in fields:
            row = empty_array(allocate, (1, begins[-1]), np.int64)
            if name == "input_ids":
                np.concatenate(tokens, out=row[0], casting="unsafe")
            elif name == "labels":
                _fill_packed_labels(row[0], labels, lengths)
                row[0, begins[:-1]] = IGNORED
            else:
                np.concatenate(_positions(lengths), out=row[0])
            batch[name] = torch.from_numpy(row)
    if "cu_seq_lens" in fields:
        batch["cu_seq_lens"] = filled_tensor(allocate, begins, np.int32)
    if "max_length" in fields:
        batch["max_length"] = max(lengths)
    return batch


def _fill_packed_labels(row: Array, labels: Sequence[Array], lengths: Sequence[int]) -> None:
    """Fill a row with labels; one without an axis goes for all tokens of its sample."""
    if all(map(_dimensions, labels)):
        np.concatenate(labels, out=row, casting="unsafe")
    elif all(each is NO_LABELS for each in labels):
        row[...] = IGNORED
    else:
        targets = [
            each if each.ndim else np.broadcast_to(each, (length,))
            for each, length in zip(labels, lengths, strict=True)
        ]
        np.concatenate(targets, out=row, casting="unsafe")


# 0, 1, 2 and so on, as long as the longest sample so far.
_counted = np.arange(1 << 12)


def _positions(lengths: Sequence[int]) -> list[Array]:
    """Return the positions in each sample; to copy them takes less than to compute them."""
    global _counted
    counted = _counted
    if (longest := max(lengths)) > len(counted):
        _counted = counted = np.arange(2 * longest)
    return [counted[:length] for length in lengths]


_dimensions = attrgetter("ndim")
NO_LABELS = np.array(IGNORED)
_ATTENDED = np.array(1)

COLLATE_BY_LAYOUT: dict[LayoutName, Callable[..., Batch]] = {
    "padded": collate_padded,
    "packed": collate_packed,
}


def _texts(samples: Sequence[Sample], pad_id: int) -> tuple[list[Array], list[Array]]:
    """Return tokens and labels of every sample; of one pad token where there is no sample."""
    tokens = [_tokens(sample, place) for place, sample in enumerate(samples)]
    if not tokens:
        return [np.array([pad_id])], [np.array([IGNORED])]
    labels = [np.asarray(s["labels"]) if "labels" in s else NO_LABELS for s in samples]
    for place, (ids, targets) in enumerate(zip(tokens, labels, strict=True)):
        if targets.ndim and targets.shape != ids.shape:
            raise ValueError(
                f"sample {place} has {len(ids)} input_ids and labels of shape {targets.shape}; "
                "labels are aligned with input_ids, with -100 where there is no loss"
            )
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
