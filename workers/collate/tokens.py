"""Reads samples' tokens, and lays them, and all that has a value for each of them, into rows.

A sample's tokens are a span of a row: of its own, filled up to the width (padded), or of the one
row that all share (packed). What packed samples are filled up with is a span, too: a sequence
behind them that kernels see as one of its own.

Labels stand at their tokens, and models shift them inside. In a pack the last token of the sample
before would be asked for a sample's first, so the first label of every sample becomes -100, in both
bases; with shift_labels=False labels are shifted already, and all stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...balancer.planning.problem.layout import Fill, Layout, rules_of
from ..sources.labels import IGNORED
from .fields import Array, Sample, Samples, empty_array, read_array

# What a batch is filled up to: one length, the first of several that is enough, or none.
Length = int | Sequence[int] | None

# What a layout makes of tokens, and so says the same of a sample as the sample does, or is wrong.
FOLLOWS: Mapping[str, Callable[[int, Sample], Any]] = {
    "attention_mask": lambda tokens, _: np.ones(tokens),
    "position_ids": lambda tokens, _: np.arange(tokens),
    "cu_seq_lens": lambda tokens, _: [0, tokens],
    "cu_seq_lens_padded": lambda tokens, _: [0, tokens],
    "pad_sequences": lambda *_: 0,
    "images_per_sample": lambda _, sample: len(
        sample.get("tiles_per_image", sample.get("image_grid_thw", ()))
    ),
    "videos_per_sample": lambda _, sample: len(sample.get("video_grid_thw", ())),
}


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Spans of the sequences' tokens: (row, begin, end) with the filling behind them.

    shape: (rows, width). lengths: without filling. samples: how many of the sequences are samples,
    the first ones; the others are filling.
    """

    shape: tuple[int, int]
    spans: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...]
    samples: int

    def lay(self, parts: Sequence[Array], fill: Fill, dtype: npt.DTypeLike) -> Array:
        """Return (..., rows, width) of the sequences' parts (..., tokens), and filling.

        fill: "next" counts on from a part's largest, and from 0 where there is none.
        """
        rows = empty_array((*parts[0].shape[:-1], *self.shape), dtype)
        for at, (row, begin, end) in enumerate(self.spans):
            filled, first = begin, 0
            if at < len(parts):
                filled = begin + parts[at].shape[-1]
                rows[..., row, begin:filled] = parts[at]
                first = parts[at].max(initial=-1) + 1 if fill == "next" else 0
            if filled < end:
                rows[..., row, filled:end] = (
                    np.arange(first, first + end - filled) if fill == "next" else fill
                )
        return rows

    def positions(self) -> Array:
        """Return 0, 1, ... in each sequence, filling too: kernels take a 0 for the next one."""
        return self.lay([np.arange(end - begin) for _, begin, end in self.spans], 0, np.int64)

    def mask(self) -> Array:
        """Return 1 for the tokens of sequences, 0 for the filling behind them."""
        return self.lay([np.ones(length, np.int64) for length in self.lengths], 0, np.int64)

    def labels(self, labels: Sequence[Array], shift_labels: bool = True) -> Array:
        """Return labels laid; no sequence's first token has one, as nothing precedes it.

        shift_labels: False where each is the next token's already: then the first ones stay.
        """
        rows = self.lay(labels, IGNORED, np.int64)
        for row, begin, _ in self.spans if shift_labels else ():
            rows[row, begin] = IGNORED
        return rows


def padded_places(lengths: Sequence[int], align: int = 1, length: Length = None) -> TokenPlaces:
    """Return a row for each sample; ValueError where they do not fit."""
    width = _pad_length(max(lengths), align, length, "its longest sample has")
    spans = tuple((row, 0, width) for row in range(len(lengths)))
    return TokenPlaces((len(lengths), width), spans, tuple(lengths), len(lengths))


def packed_places(lengths: Sequence[int], align: int = 1, length: Length = None) -> TokenPlaces:
    """Return one row for all samples, each filled up to a multiple of align; ValueError as above.

    What is missing to `length` is a sequence of its own.
    """
    filled = [_pad_length(tokens, align, None, "") for tokens in lengths]
    total = _pad_length(sum(filled), align, length, "its samples have")
    more = (total - sum(filled),) * (total > sum(filled))
    ends = [*accumulate((*filled, *more), initial=0)]
    spans = tuple((0, begin, end) for begin, end in pairwise(ends))
    return TokenPlaces((1, total), spans, (*lengths, *more), len(lengths))


def _pad_length(tokens: int, align: int, length: Length, holder: str) -> int:
    """Return tokens as a multiple of align, or length; ValueError where that is too short.

    >>> [_pad_length(17, 16, length, "") for length in (None, 64, (16, 48))]
    [32, 64, 48]
    """
    aligned = -(-tokens // max(1, align)) * align
    # Of several lengths the largest is refused below, where none is enough.
    if length is not None and not isinstance(length, int):
        length = next((bound for bound in length if bound >= aligned), length[-1])
    if align < 1 or (length is not None and length % align):
        raise ValueError(f"length is {length} and align {align}: give a multiple of it, at least 1")
    if length is not None and aligned > length:
        raise ValueError(
            f"a microbatch is to have {length} tokens, and {holder} {aligned}: give a larger "
            "length, or a budget that keeps to it"
        )
    return aligned if length is None else length


def read_tokens(samples: Samples, derived: frozenset[str]) -> tuple[list[Array], list[Array]]:
    """Return the tokens of each sample, and its labels, -100 where it has none.

    derived: the fields that the layout makes itself. Raises TypeError or ValueError for a sample
    without tokens, with wrong labels, or with such a field that says otherwise.
    """
    tokens, all_labels = list[Array](), list[Array]()
    for place, sample in enumerate(samples):
        if "input_ids" not in sample:
            names = ", ".join(map(str, sample)) or "none"
            raise ValueError(
                f"sample {place} has no input_ids (its fields: {names}); give it some in the "
                "transform, or use a cp.Layout without base, or layout='torch' with a collate_fn"
            )
        ids = read_array(sample["input_ids"], place, "input_ids")
        if ids.ndim != 1 or not len(ids):
            raise ValueError(
                f"sample {place} has input_ids of shape {ids.shape}; use (n,) with n >= 1"
            )
        if ids.dtype.kind not in "iu":
            raise ValueError(
                f"sample {place} has input_ids of {ids.dtype}; use whole numbers (int64)"
            )
        check_derived(sample, place, len(ids), derived)
        labels = np.full(len(ids), IGNORED)  # a sample without labels weighs nothing
        if "labels" in sample:
            labels = read_array(sample["labels"], place, "labels")
        if labels.shape != ids.shape or labels.dtype.kind not in "iu":
            raise ValueError(
                f"sample {place} has {len(ids)} input_ids and labels {labels.dtype} of shape "
                f"{labels.shape}; labels are aligned with input_ids, whole numbers with -100 "
                "where there is no loss"
            )
        tokens.append(ids)
        all_labels.append(labels)
    return tokens, all_labels


@lru_cache(maxsize=64)
def list_derived(layout: Layout) -> frozenset[str]:
    """Return the fields that are never samples' own: those of either base, but for own rules."""
    rules = rules_of(layout)
    either = {*FOLLOWS, "max_length"} if layout.base else set()
    return frozenset(name for name in {*rules, *either} if name not in rules or rules[name].of)


def check_derived(sample: Sample, place: int, tokens: int, derived: frozenset[str]) -> None:
    """Raise ValueError for a field that the layout makes, where it says otherwise than it does."""
    # a number max_length says nothing about the sample: the tokenizer was asked for no more
    for name in derived.intersection(sample) - {"max_length"}:
        says = np.asarray(FOLLOWS[name](tokens, sample)) if name in FOLLOWS else None
        if says is None or not np.array_equal(read_array(sample[name], place, name), says):
            right = "" if says is None else np.array2string(says, threshold=6, edgeitems=2)
            raise ValueError(
                f"sample {place} has {name} of its own, and not the one that follows from its "
                f"{tokens} input_ids{f' ({right})' * bool(right)}: layouts 'padded' and 'packed' "
                "make that field themselves, of samples without padding. Cut padding off "
                "(input_ids[attention_mask == 1]), leave the field out, or give it another name"
            )
