"""Collates samples to one batch by a layout, and copies each payload byte once.

A sample maps field names to arrays, numbers, strings or bytes. A `Layout` has a rule for fields by
their name (balancer/planning/problem/layout.py); "padded" and "packed" are two of them, and the
base of a user's own. With a base three kinds of fields have a meaning:

    input_ids, labels   integer (n,): tokens, and what is learned at them; see tokens.py
    images, videos      tiles, patches with their grid, or images; see images.py
    made fields         follow from these: attention_mask, position_ids, cu_seq_lens, ...

Any other field without a rule is laid by its kind: numbers become a tensor (B,); strings and bytes
(and None beside them) a list; arrays are concatenated along their first axis, and `<name>_lengths`
int32 (B,) says how long each was. Anything else is refused.

A microbatch without samples becomes a valid batch of zero weight: one pad token without a label.
A dummy tile is one zero tile in pixel_values that no entry of tiles_per_image owns, for encoders
that every rank must run (FSDP, DDP): the model adds 0 times what the encoder makes of it.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from ...balancer.planning.problem.layout import (
    BUILT_IN,
    Layout,
    LayoutName,
    Rule,
    as_layout,
    read_rules,
)
from ..sources.labels import IGNORED
from .fields import (
    BY_KIND,
    Batch,
    Samples,
    UnlikeError,
    collate_field,
    fill_as,
    filled_tensor,
    find_common_type,
    read_array,
    read_arrays,
)
from .images import IMAGE_FIELDS, collate_images
from .stacked import EVERY, describe_kinds
from .tokens import Length, TokenPlaces, list_derived, packed_places, padded_places, read_tokens

TEXTS = ("input_ids", "labels")


def collate_samples(
    samples: Samples,
    layout: LayoutName | Layout,
    *,
    dummy_tile: int = 0,
    fields: Container[str] = EVERY,
    align: int = 1,
    length: Length = None,
) -> Batch:
    """Return the batch of samples by a layout: "padded", "packed" or one of your own.

    A layout with a base has the fields of collate_padded or collate_packed, too.

    Args:
        samples: Samples, each a mapping of fields.
        layout: "padded", "packed", or a Layout.
        dummy_tile: Side in pixels of the zero tile of a batch without images; default 0, none.
        fields: Names of the batch's fields to make; default all.
        align: Number of tokens of whose multiples the filling makes lengths; default 1.
        length: Tokens that are filled up to, or several numbers, ascending; default none.

    Raises ValueError or TypeError for samples that do not fit together, with the rule to add where
    there is one.
    """
    by = as_layout(layout)
    if by is None:
        raise ValueError("layout 'torch' is what collate_fn makes: give another, or call that")
    for place, sample in enumerate(samples):
        if type(sample) is not dict and not isinstance(sample, Mapping):
            raise TypeError(
                f"sample {place} is a {type(sample).__name__}, and layout {by.name!r} needs "
                f"dicts{' with input_ids' * bool(by.base)}: return such from the dataset, or use "
                "layout='torch' with a collate_fn"
            )
    collation = _Collation(by, samples, fields)
    batch: Batch = {}
    if by.base is not None:
        tokens, labels = read_tokens(samples, collation.derived)
        tokens, labels = tokens or [np.array([by.pad_id])], labels or [np.array([IGNORED])]
        lay = padded_places if by.base == "padded" else packed_places
        collation.places = lay([*map(len, tokens)], align, length)
        if "input_ids" in fields:
            batch["input_ids"] = torch.from_numpy(collation.places.lay(tokens, by.pad_id, np.int64))
        if "labels" in fields:
            batch["labels"] = torch.from_numpy(collation.places.labels(labels, by.shift_labels))
    elif (align, length) != (1, None):
        raise ValueError(f"layout {by.name!r} has no base, and so no tokens to be filled up")
    for name, rule in collation.rules.items():
        if rule.of:
            batch |= collation.make(name, rule, has_gaps=align > 1, is_sized=length is not None)
    if collation.places is not None and length is not None and "pad_sequences" in fields:
        batch["pad_sequences"] = len(collation.places.lengths) - collation.places.samples
    known = collation.derived
    if by.base is not None:
        known |= {*TEXTS}
        if not IMAGE_FIELDS & by.fields.keys():  # else they follow those rules, or their kind
            known |= IMAGE_FIELDS
            batch |= collation.advised(
                "pixel_values", lambda _: collate_images(samples, dummy_tile, fields)
            )
    names = dict.fromkeys(name for sample in samples for name in sample if name not in known)
    for name in names:
        laid = collation.advised(name, collation.lay)
        if taken := [field for field in laid if field != name and field in names]:
            raise ValueError(
                f"samples have a field {taken[0]!r}, which is the name of the lengths of "
                f"{name!r} in the batch: give the samples' another name"
            )
        batch |= laid
    return batch


class _Collation:
    """Makes the fields of one batch of `samples` by the layout `by`."""

    def __init__(self, by: Layout, samples: Samples, fields: Container[str]) -> None:
        self.by, self.samples, self.fields = by, samples, fields
        self.rules = read_rules(by)
        self.derived = list_derived(by)
        self.places: TokenPlaces | None = None  # of the tokens, where there are any

    def lay(self, name: str) -> Batch:
        """Return a field of the samples in the batch, and its lengths."""
        rule = self.rules.get(name) or (BY_KIND if self.by.base else None)
        samples = self.samples
        values = {place: sample[name] for place, sample in enumerate(samples) if name in sample}
        if rule is None:
            raise ValueError(
                f"field {name!r} comes as {describe_kinds(values)}, and has no rule in layout "
                f"{self.by.name!r}: {_advice(self.by, name, _fitting(values))}"
            )
        missing = [place for place in range(len(samples)) if place not in values]
        if missing and not rule.optional:
            # a field may say something of images, and be missing where there are none
            pictured = ["pixel_values" in sample for sample in samples]
            goes_with_images = (
                rule is BY_KIND
                and any(pictured)
                and not any(pictured[place] for place in missing)
                and all(np.ndim(value) for value in values.values())
            )
            if not goes_with_images:
                raise ValueError(
                    f"field {name!r} is missing in samples {missing} of {len(samples)}; "
                    "give it to every sample, or to none"
                )
        if rule.fill == "pad_id":
            rule = replace(rule, fill=self.by.pad_id)
        if rule.how == "tokens":
            return self._lay_per_token(name, rule, values)
        return dict(collate_field(name, values, len(samples), rule, self.fields))

    def _lay_per_token(self, name: str, rule: Rule, values: Mapping[int, Any]) -> Batch:
        assert self.places is not None  # Layout has no such rule without a base
        if name not in self.fields:
            return {}
        arrays, bits = read_arrays(name, values)
        inner = next(iter(arrays.values())).shape[:-1]
        for place, array in arrays.items():
            if not array.ndim or array.shape[-1] != self.places.lengths[place]:
                raise ValueError(
                    f"field {name!r} of sample {place} has shape {array.shape}, and its input_ids "
                    f"{(self.places.lengths[place],)}: it goes with the tokens, on its last axis; "
                    f"where it does not, {_advice(self.by, name, 'pad 0')}"
                )
            if array.shape[:-1] != inner:
                raise UnlikeError(name, arrays)
        dtype = find_common_type(name, [*arrays.values()])
        none = np.empty((*inner, 0), dtype)
        parts = [arrays.get(place, none) for place in range(len(self.samples))]
        rows = torch.from_numpy(self.places.lay(parts, fill_as(rule.fill, bits), dtype))
        return {name: rows if bits is None else rows.view(bits)}

    def make(self, name: str, rule: Rule, has_gaps: bool, is_sized: bool) -> Batch:
        """Return a field that is made of another one, and has no values in samples."""
        for place, sample in enumerate(self.samples if self.by.base is None else ()):
            if name in sample:
                raise ValueError(
                    f"sample {place} has {name}, which layout {self.by.name!r} makes of {rule.of}: "
                    "leave it out, or give one of them another name"
                )
        places, of = self.places, self.rules[rule.of].how
        if of != "tokens":
            lengths = [np.shape(sample.get(rule.of, ())) for sample in self.samples]
            firsts = [shape[0] if shape else 1 for shape in lengths] or [0]
            places = (packed_places if of == "concatenate" else padded_places)(firsts)
        assert places is not None
        if name not in self.fields and f"{name}_padded" not in self.fields:
            return {}
        begins = [*(begin for _, begin, _ in places.spans), places.shape[1]]
        batch: Batch = {}
        if rule.how in ("positions", "mask"):
            rows = places.positions() if rule.how == "positions" else places.mask()
            batch[name] = torch.from_numpy(rows[0] if of == "concatenate" else rows)
        elif rule.how == "longest":
            longest = max(end - begin for _, begin, end in places.spans)
            # Where batches are to be alike their numbers are, too: kernels take it for a bound.
            batch[name] = places.shape[1] if is_sized and of == "tokens" else longest
        elif rule.how == "lengths":
            batch[name] = filled_tensor([*places.lengths[: places.samples]], np.int32)
        else:
            batch[name] = filled_tensor([*accumulate(places.lengths, initial=0)], np.int32)
            if of == "tokens" and has_gaps and self.by.base == "packed":
                batch[f"{name}_padded"] = filled_tensor(begins, np.int32)
        return {field: value for field, value in batch.items() if field in self.fields}

    def advised(self, name: str, make: Callable[[str], Batch]) -> Batch:
        """Return what `make(name)` does; its errors name the rule that would be right."""
        try:
            return make(name)
        except UnlikeError as error:
            rule = "concatenate, pad 0, optional" if name in IMAGE_FIELDS else "pad 0"
            more = f", or {_advice(self.by, name, rule)}" if error.by_shape else ""
            raise ValueError(f"{error}{more}") from None
        except TypeError as error:
            raise TypeError(f"{error}, or {_advice(self.by, name, 'list')}") from error


def _advice(by: Layout, name: str, rule: str) -> str:
    """Return what to write where a field needs a rule."""
    if by.name in BUILT_IN:
        layout = f"cp.Layout('mine', {{{name!r}: {rule!r}}}, base={by.base!r})"
        return f"give it a rule of its own: Balance(layout={layout})"
    return f"give it a rule: add {name!r}: {rule!r} to the fields of cp.Layout({by.name!r}, ...)"


def _fitting(values: Mapping[int, Any]) -> str:
    """Return a rule that fits values."""
    try:
        shapes = {np.shape(read_array(value, 0, "")) for value in values.values()}
    except (TypeError, ValueError):
        return "list"
    return "stack" if len(shapes) == 1 else "pad 0"


def collate_padded(
    samples: Samples,
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    align: int = 1,
    length: Length = None,
    shift_labels: bool = True,
) -> Batch:
    """Stack samples as rows, filled up to the longest.

    Gives input_ids, labels, attention_mask int64 (B, longest): pad_id, -100 and 0 in the filling;
    pixel_values with tiles_per_image int32 (images,) or image_grid_thw int64 (images, 3), and
    images_per_sample int32 (B,); and every other field by the rules above.

    Args:
        samples, dummy_tile: As in collate_samples.
        pad_id, shift_labels: As in Layout; default 0 and True.
        align: Number of tokens of which the width is a multiple; default 1.
        length: Tokens of the width; of several, ascending, the first that is enough; default none.

    Raises ValueError for samples that do not fit together, or in `length`.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> collate_padded(rows)["input_ids"].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    return collate_samples(
        samples, Layout("padded", pad_id=pad_id, shift_labels=shift_labels), dummy_tile=dummy_tile,
        align=align, length=length,
    )  # fmt: skip


def collate_packed(
    samples: Samples,
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    align: int = 1,
    length: Length = None,
    shift_labels: bool = True,
) -> Batch:
    """Concatenate samples, without padding but what `align` and `length` ask for.

    Gives input_ids, labels, position_ids int64 (1, total), where positions restart at 0 with every
    sample; cu_seq_lens int32 (B + 1,) and max_length (an int) for varlen attention; the rest as in
    collate_padded. docs/guides/packed.md says which kernels and models take what.

    With `align` positions go on in the filling, cu_seq_lens says how long samples are without, and
    cu_seq_lens_padded int32 where each begins. With `length` what is missing is one more sequence
    of pad tokens, and pad_sequences is 1, else 0: kernels leave what no sequence holds as it was in
    memory; max_length is the length then, so that batches are alike for what is compiled.

    Args:
        samples, dummy_tile: As in collate_samples.
        pad_id, shift_labels: As in Layout; default 0 and True.
        align: Number of tokens of which each sample's length becomes a multiple; default 1.
        length: Tokens of the batch; of several, ascending, the first that is enough; default none.

    Raises ValueError for samples that do not fit together, or in `length`.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> batch = collate_packed(rows)
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["cu_seq_lens"].tolist()
    ([[5, 6, 7, 8]], [[0, 1, 2, 0]], [0, 3, 4])
    """
    return collate_samples(
        samples, Layout("packed", pad_id=pad_id, shift_labels=shift_labels), dummy_tile=dummy_tile,
        align=align, length=length,
    )  # fmt: skip
