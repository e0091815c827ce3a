"""Presents a folder that `energon prepare` has been through as a map-style dataset.

Its shards are plain tars, and are read as such; `.nv-meta` says which of them are of a split, which
samples are left out, and what fields of a sample are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from ..sources.file_patterns import Pattern, named
from ..sources.fingerprint import digest
from ..sources.interface import Cost, Sample, SampleError
from ..sources.records import Transform
from ..tar.dataset import TarDataset
from .config import resolve
from .folder import DATASET, META, SPLIT, Subset, field_value, read_folder


class EnergonDataset(TarDataset):
    """Samples of a split of an Energon folder, in the order of its shards; a source.

    A transform gets what TarDataset gives it: members by extension, and "__key__". Beside them it
    finds the fields of dataset.yaml's `field_map` by their names (`image: jpg,png` is raw["image"],
    the very bytes of raw["jpg"]), and the `subflavors`, if any, as "__subflavors__". A
    `sample_loader` is code in the folder and is never run: such a folder needs a transform. Without
    one samples are TarDataset's, with the fields of the map. Raises FileNotFoundError for a folder
    or shard that is not there, ValueError for one that is damaged or holds other samples than it
    says.

    Args:
        pattern: The prepared folder.
        split: A name in split.yaml: "train" (the default), "val", "test".
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        subset: A part of the split, as metadatasets write it: ["0%", "50%"], [0, 100] or
            [100, "end"]; default all.
        subflavors: What each sample gets as "__subflavors__"; default nothing.
        dataset_config: The file in `.nv-meta` in place of dataset.yaml.
        split_config: The file in `.nv-meta` in place of split.yaml.
    """

    FORMAT, MARKERS = "energon", (META,)

    def __init__(
        self,
        pattern: Pattern,
        split: str = "train",
        transform: Transform | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
        *,
        subset: Sequence[int | float | str | None] = (),
        subflavors: Mapping[str, Any] | None = None,
        dataset_config: str = DATASET,
        split_config: str = SPLIT,
    ) -> None:
        if not isinstance(split, str) or not isinstance(subflavors or {}, Mapping):
            raise ValueError(
                f"split is {split!r:.80}, subflavors {subflavors!r:.80}: give a text and a mapping"
            )
        self.split, self.subset = split, Subset.parse(subset)
        self.subflavors = dict(subflavors or {})
        self.arguments = {
            "split": split,
            "subset": list(astuple(self.subset)),
            "subflavors": self.subflavors,
            "dataset_config": dataset_config,
            "split_config": split_config,
        }
        super().__init__(pattern, transform, root, cache, cost)

    def find_files(self, pattern: Pattern) -> tuple[Path, ...]:
        """Return the split's shards, in the order of split.yaml."""
        names, root = named(pattern), None if self.root is None else Path(self.root)
        if len(names) != 1:
            raise ValueError(f"give one prepared folder, got {pattern!r:.200}")
        base = root or Path()
        self.folder = resolve(base, names[0], root, base, leaves=True).expanduser()
        if self.folder.is_file():
            raise ValueError(
                f"{self.folder} is a file: a metadataset is opened by cp.workers.open_metadataset, "
                f"and of a prepared folder the one that has {META} is given"
            )
        configs = (self.arguments[name] for name in ("dataset_config", "split_config"))
        self._about = read_folder(self.folder, self.split, root, *configs)
        if self._about.code and self.transform is None:
            raise ValueError(
                f"{self.folder}: samples are made by {self._about.code}, code in the folder, which "
                "is not run: give transform=, a function of the members"
            )
        return tuple(self._about.counts)

    def open(self) -> None:
        """Find the shards that are said now, which may be new, and index them."""
        self.files = self.find_files(self.pattern)
        super().open()

    def open_files(self) -> Sequence[int]:
        """Open the shards' indexes, and keep what is of the subset and not left out of them."""
        counts, begins = super().open_files(), 0
        first, last = self.subset.bounds(sum(counts), str(self.folder))
        indexes = list(self._indexes)
        for number, (path, listed) in enumerate(self._about.counts.items()):
            index, count = indexes[number], counts[number]
            if count != listed:
                raise ValueError(
                    f"{path} has {count} samples, and {META} says {listed}: run `energon prepare`"
                )
            name = path.relative_to(self.folder).as_posix()
            rows = np.arange(max(0, first - begins), max(0, min(count, last - begins)))
            begins += count
            if out := self._about.excluded:
                rows = rows[[f"{name}/{index.name(row)}" not in out for row in rows.tolist()]]
            if len(rows) < count:
                indexes[number] = index.select(rows)
        self._indexes = tuple(indexes)
        if not any(map(len, indexes)):
            raise ValueError(f"{self.folder}: {self.split!r} and its subset have no samples")
        return [len(index) for index in indexes]

    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return TarDataset's members, and where there is a transform the fields, too."""
        raw = super().read(number, row, headers)
        # Without one, samples are made of the members alone: none is decoded or counted twice.
        return raw if self.transform is None else self._with_fields(raw)

    def load(self, index: int, epoch: int = 0, seed: int = 0) -> Sample:
        """Read, decode and transform a sample; the bytes do not depend on process or time."""
        sample = super().load(index, epoch, seed)
        if self.transform is not None:
            return sample
        try:
            return self._with_fields(sample)
        except ValueError as error:
            raise SampleError(self.key(index), str(error), self.locate_file(index)) from None

    def _with_fields(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(raw)
        for name, options in self._about.fields.items():
            try:
                fields[name] = field_value(raw, options)
            except KeyError:
                known = ", ".join(map("/".join, options))
                raise ValueError(f"field {name!r} is in none of {known}") from None
        return fields | ({"__subflavors__": self.subflavors} if self.subflavors else {})

    def file_digest(self, number: int) -> str:
        """Return a hash of a shard's keys and places, and of what raw samples have beside them."""
        shard_digest = super().file_digest(number)
        facts = [self._about.fields, self.subflavors]
        return digest([shard_digest, *facts]) if any(facts) else shard_digest
