"""Counts the label tokens of a batch, wherever it is collated.

Labels stand at their token, as Hugging Face's collators make them: models shift them inside. So a
row's first label is predicted by nothing, nor is that of each sample in a packed row. With
Layout(..., shift_labels=False) labels stand at the token before theirs, and all of them count.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from ..sources.labels import IGNORED, count_label_tokens, find_labels

# The labels that count if they stand at their token, all of them, and "at" or "before" where
# input_ids show that they stand there, or at the token before; else "".
BatchLabels = tuple[int, int, Literal["", "at", "before"]]


def count_batch_label_tokens(batch: Any, samples: Sequence[Any], shift_labels: bool = True) -> int:
    """Return the label tokens of a batch; of its samples, where the batch has none to be counted.

    Those of its field `labels` other than -100, without each row's first. labels: whole numbers
    (B, L); or (T,) or (1, T) beside `position_ids` or `cu_seq_lens`, in which samples begin where
    position_ids is 0, or at each of cu_seq_lens; (B,) alone are classes. shift_labels: as in
    Balance; with False the first ones count, too.

    >>> packed = {"labels": torch.tensor([5, 6, 7, 8]), "position_ids": torch.tensor([0, 1, 0, 1])}
    >>> count_batch_label_tokens(packed, []), count_batch_label_tokens(None, [{"labels": [5, 6]}])
    (2, 1)
    """
    if (label_counts := read_batch_labels(batch)) is not None:
        return label_counts[:2][not shift_labels]
    return sum(count_label_tokens(find_labels(sample), shift_labels) for sample in samples)


def read_batch_labels(batch: Any) -> BatchLabels | None:
    """Return what can be seen of the labels of a batch; None for no labels."""
    labels = _integers(batch, "labels") if isinstance(batch, Mapping) else None
    if labels is None or labels.ndim not in (1, 2):
        return None
    # A model predicts the next token, so the first label of each sample is never used.
    is_first, is_learned = np.zeros(labels.shape, bool), labels != IGNORED
    positions, starts = _integers(batch, "position_ids"), _integers(batch, "cu_seq_lens")
    if positions is not None and positions.shape == labels.shape:
        is_first = positions == 0
    elif starts is not None and (labels.ndim == 1 or len(labels) == 1):
        is_first.reshape(-1)[starts[starts < labels.size]] = True
    elif labels.ndim == 1:
        return None
    if labels.ndim == 2:
        is_first[:, 0] = True
    ids = _integers(batch, "input_ids")
    stand: Literal["", "at", "before"] = ""
    if ids is not None and ids.shape == labels.shape:
        # what follows a sample's last label is the filling, or another sample
        inside = is_learned[..., :-1] & is_learned[..., 1:] & ~is_first[..., 1:]
        if np.array_equal(ids[is_learned], labels[is_learned]):
            stand = "at"
        elif inside.any() and np.array_equal(ids[..., 1:][inside], labels[..., :-1][inside]):
            stand = "before"
    return int((is_learned & ~is_first).sum()), int(is_learned.sum()), stand


def _integers(batch: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return a field of whole numbers as an array, None where it is anything else."""
    value = batch.get(name)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if not value.is_floating_point() else None
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else None
