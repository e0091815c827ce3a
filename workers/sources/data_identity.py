"""Identifies the data that a dataset holds, as far as that can be told without reading them.

A ledger holds this text and compares it: what was saved over one data set is not continued on
another. Ranks compare it, too, when they meet. Of tar shards it is a hash of their indexes, of a
Hugging Face dataset its fingerprint or, in a balanced loop, some of its rows, of torch's Subset and
ConcatDataset one of their parts', of a list of texts or numbers some of them, of any other dataset
its class and, in a balanced loop, what is in memory of some of its samples, or some of its keys.
Versions of libraries and transforms are no part of it: they may change while a training goes on.
Where costs decide what was delivered, the position has a digest of them (`EpochPosition.costs`),
and changed transforms show there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .fingerprint import digest, digest_arrays
from .interface import Source, library_class
from .offered import is_concatenated, is_subset, whole_parts

# Keys, or indices of a subset, that are looked at: evenly spaced, the first and the last among
# them.
LOOKED_AT = 64
# So much is looked at of a text, an array or a list inside of a sample, and so deep.
PART, DEPTH = 512, 4


@dataclass(frozen=True, slots=True)
class KnownData:
    """A dataset with its number of samples, None where that is not known.

    key: a sample's name by its index, None where the data name their samples. seen: the number of
    samples and the identity as they were before samples in memory could change.

    >>> KnownData(range(3), 3).identity, KnownData(range(3), 3, key=str).identity
    ('range', 'range 462179b936184005')
    """

    dataset: Any
    samples: int | None
    key: Callable[[int], str] | None = None
    seen: tuple[int | None, str] | None = None

    def look_at_samples(self) -> "KnownData":
        """Return the same, with a look at samples that are in memory: collating may change them."""
        identity = _find_identity(self.dataset, self.samples, self.key, looks=True)
        return replace(self, seen=(self.samples, identity))

    @property
    def identity(self) -> str:
        """The dataset's class and, where there is one, a hash of what it holds."""
        # Shards may be rewritten.
        is_live = any(map(_has_digest, whole_parts(self.dataset)))
        if self.seen is not None and self.seen[0] == self.samples and not is_live:
            return self.seen[1]
        return _find_identity(self.dataset, self.samples, self.key, looks=self.seen is not None)

    @property
    def rank_identity(self) -> str:
        """The identity without what may differ between processes that have the same data."""
        return _find_identity(self.dataset, self.samples, self.key, looks=True)

    def identity_of_first(self, samples: int) -> str | None:
        """Return the identity that the first samples had by themselves; None: not known."""
        if (data_digest := _source_digest(self.dataset, samples)) is not None:
            return _label(self.dataset, data_digest)
        has_mark = isinstance(getattr(self.dataset, "_fingerprint", None), str)
        if has_mark or is_subset(self.dataset) or is_concatenated(self.dataset):
            return None
        return _find_identity(self.dataset, samples, self.key, looks=self.seen is not None)


def _find_identity(
    dataset: Any,
    samples: int | None,
    key: Callable[[int], str] | None,
    looks: bool,
) -> str:
    if (data_digest := _source_digest(dataset)) is not None:
        return _label(dataset, data_digest)
    mark = getattr(dataset, "_fingerprint", None)  # Hugging Face's
    if isinstance(mark, str):
        has_rows = looks and hasattr(dataset, "with_format")
        return _label(dataset, digest(_summarize_rows(dataset)) if has_rows else mark)
    if is_subset(dataset):
        indices = [int(dataset.indices[place]) for place in spread(len(dataset.indices))]
        inner = _find_identity(dataset.dataset, None, None, looks)
        return _label(dataset, digest([inner, indices]))
    if is_concatenated(dataset):
        parts = [_find_identity(part, None, None, looks) for part in dataset.datasets]
        return _label(dataset, digest(parts))
    # To look at these takes no loading, and draws nothing.
    if columns := _find_columns(dataset):
        most = min(samples if samples is not None else len(dataset), *map(len, columns))
        spread_samples = [column[index] for column in columns for index in spread(most)]
        if looks or all(isinstance(sample, str | int | float) for sample in spread_samples):
            return _label(dataset, digest([summarize_content(sample) for sample in spread_samples]))
    # Keys name samples for good; where there are none only the class is known.
    if key is not None and samples is not None:
        return _label(dataset, digest([str(key(index)) for index in spread(samples)]))
    return type(dataset).__qualname__


def _has_digest(dataset: Any) -> bool:
    return isinstance(dataset, Source) and type(dataset).data_digest is not Source.data_digest


def _source_digest(dataset: Any, samples: int | None = None) -> str | None:
    return dataset.data_digest(samples) if isinstance(dataset, Source) else None


def _summarize_rows(dataset: Any) -> list[Any]:
    """Return the schema, the length and some rows of a Hugging Face dataset, not transformed.

    Its fingerprint depends on times of files, and for functions that cannot be hashed (TRL's of
    pairs) on chance: each process has another.
    """
    rows = dataset.with_format("arrow")[spread(len(dataset))]
    schema = str(rows.schema.remove_metadata())
    return [schema, len(dataset), *map(summarize_content, rows.to_pylist())]


def _find_columns(dataset: Any) -> list[Any]:
    """Return what holds a dataset's samples one by one; nothing where they have to be loaded."""
    tensors = getattr(dataset, "tensors", None)  # as torch's TensorDataset
    columns = list(tensors) if isinstance(tensors, tuple) else [dataset]
    return [c for c in columns if type(c) in (list, tuple) or (_is_array(c) and c.ndim)]


def summarize_content(value: Any, depth: int = DEPTH, is_exact: bool = True) -> Any:
    """Return JSON-able facts of a sample: types, lengths, and the first of what it holds.

    is_exact: False leaves out what decoders of other hosts may give otherwise: fractions, bytes.

    >>> summarize_content({"name": "/data/a/1.png", "n": 0.5})
    {'name': [7, 'a/1.png'], 'n': 0.5}
    >>> summarize_content({"n": 0.5}, is_exact=False)
    {'n': 'float'}
    """
    if isinstance(value, bool | int | None) or (isinstance(value, float) and is_exact):
        return value
    if isinstance(value, str):
        is_path = "/" in value and " " not in value
        text = "/".join(value.split("/")[-2:]) if is_path else value
        return [len(text), text[:PART]]
    if isinstance(value, bytes):
        return [len(value), value[:PART].hex()] if is_exact else "bytes"
    if isinstance(value, Mapping) and depth:
        return {str(name): summarize_content(v, depth - 1, is_exact) for name, v in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [
            len(value),
            *[summarize_content(part, depth - 1, is_exact) for part in value[:PART]],
        ]
    if not _is_array(value):
        return type(value).__qualname__
    facts = [str(value.dtype), list(value.shape)]
    try:
        part = np.asarray(value.reshape(-1)[:PART])
    except (TypeError, ValueError, RuntimeError):  # a tensor that numpy cannot have
        return facts
    is_whole = part.dtype.kind in "biuUM" and part.dtype.itemsize > 1
    has_numbers = not part.dtype.hasobject and (is_exact or is_whole)
    return [*facts, digest_arrays(b"", part)] if has_numbers else facts


def _is_array(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("dtype", "ndim", "reshape"))


def _label(dataset: Any, mark: str) -> str:
    return f"{library_class(dataset).__qualname__} {mark}"


def spread(count: int, most: int = LOOKED_AT) -> list[int]:
    """Return at most that many numbers below `count`, evenly spaced.

    >>> spread(3), spread(1000)[:2], spread(1000)[-1], len(spread(1000))
    ([0, 1, 2], [0, 15], 999, 64)
    """
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]
