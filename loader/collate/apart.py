"""Takes batches apart into their samples again, by the layout that they were made by."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from ...balancer.planning.problem.layout import BUILT_IN, Layout, read_rules
from ...workers.collate.fields import Array
from ...workers.collate.images import COUNTS, GRIDS, IMAGE_FIELDS, TILES
from ...workers.collate.tokens import list_derived

LENGTHS = "_lengths"


def take_apart(batch: Mapping[str, Any], layout: Layout | None = None) -> list[dict[str, Any]]:
    """Return the samples of a batch; ValueError for one that cannot be taken apart.

    layout: the one of the user's that it was made by; None: padded or packed. Each sample's first
    label is -100, as the layouts make it; samples that had no labels get some that are all -100.
    Dummy tiles and filling belong to no sample.
    """
    if "input_ids" not in batch or not ("cu_seq_lens" in batch or "attention_mask" in batch):
        raise ValueError(
            "only batches of layout 'padded' or 'packed', or of one with such a base, can be taken "
            f"apart, and this one has {', '.join(map(str, batch))[:200]}: give "
            "Balance(layout='packed')"
        )
    layout = layout or BUILT_IN["packed" if "cu_seq_lens" in batch else "padded"]
    rules, derived = read_rules(layout), list_derived(layout)
    places = _places(batch)
    samples: list[dict[str, Any]] = [{} for _ in places]
    for name, whole in batch.items():
        of_name = name.removesuffix(LENGTHS)
        # what the layout has made follows from the samples, and is not theirs
        if name in derived or (of_name != name and of_name in batch):
            continue
        # images without a rule of the user's go with their owners, below
        if name in IMAGE_FIELDS and name not in rules:
            continue
        how = rules[name].how if name in rules else ""
        lengths = batch.get(f"{name}{LENGTHS}")
        values: Any = whole
        if how == "tokens":
            array = np.asarray(whole)
            values = [array[..., row, span] for row, span in places]
        elif not isinstance(whole, list):
            values = np.asarray(whole)
            # filled up: the sizes of all axes say what was there; else laid one after another
            if lengths is not None and how == "pad":
                sizes = np.asarray(lengths).reshape(len(samples), -1).tolist()
                pairs = zip(values, sizes, strict=True)
                values = [filled[tuple(map(slice, size))] for filled, size in pairs]
            elif lengths is not None:
                values = _parts(values, lengths)
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    # tiles, patches with their grids, or images
    for pixels, grid in GRIDS.items() if not IMAGE_FIELDS & rules.keys() else ():
        owner = TILES if pixels == "pixel_values" and TILES in batch else grid
        counts = np.asarray(batch.get(COUNTS[pixels], ()))
        parts = {owner: counts.tolist(), pixels: counts.tolist()}
        if owner in batch:
            owned = _parts(np.asarray(batch[owner]), counts)
            parts[pixels] = [int((o.prod(axis=1) if o.ndim > 1 else o).sum()) for o in owned]
        for name in [field for field in parts if field in batch]:
            values = _parts(np.asarray(batch[name]), parts[name])
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
    return samples


def _places(batch: Mapping[str, Any]) -> list[tuple[int, slice]]:
    """Return the row and the place in it of each sample's tokens, without those of filling."""
    if "cu_seq_lens" in batch:
        # packed: one row has all samples, each from where it begins
        lengths = np.diff(np.asarray(batch["cu_seq_lens"])).tolist()
        begins = np.asarray(batch.get("cu_seq_lens_padded", batch["cu_seq_lens"])).tolist()
        places = [(0, slice(b, b + n)) for b, n in zip(begins, lengths, strict=False)]
    else:
        lengths = np.asarray(batch["attention_mask"]).sum(axis=1).tolist()
        places = [(row, slice(0, length)) for row, length in enumerate(lengths)]
    return places[: len(places) - batch.get("pad_sequences", 0)]


def _parts(whole: Array, lengths: Any) -> list[Array]:
    ends = np.cumsum([0, *np.asarray(lengths).tolist()]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
