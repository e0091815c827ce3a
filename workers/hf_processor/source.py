"""`ProcessedRecords`: a map-style data set of records, as a source of samples with their costs."""

import sys
from collections.abc import Callable
from typing import Any

from ..sources.fingerprint import digest
from ..sources.interface import Probe, SampleError, Source
from ..sources.plain import PlainSource
from .records import MEDIA_COLUMNS


class ProcessedRecords(Source):
    """The samples that a processor makes of a data set's records; costs come without pixels."""

    def __init__(self, dataset: Any, processor: Any) -> None:
        self.records = dataset
        self._records = PlainSource(with_files(dataset))
        self.sources = (self._records,)
        self._processor = processor

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        """Return the sample of a record."""
        return self.load(index, epoch=0, seed=0)

    def key(self, index: int) -> str:
        """Return the name that the data set gives, else the index."""
        return self._records.key(index)

    def probe(self, index: int) -> Probe:
        """Return what a record costs."""
        probe = self._named(index, self._processor.probe, self._records[index])
        return Probe(self.key(index), probe.cost, probe.nbytes)

    def load(self, index: int, epoch: int, seed: int) -> Any:
        """Return the sample of a record; a data set that draws does so from (seed, epoch, key)."""
        return self._named(index, self._processor, self._records.load(index, epoch, seed))

    def fingerprint(self) -> str:
        """Return a hash of the data set's and the processor's."""
        return digest([PlainSource(self.records).fingerprint(), self._processor.fingerprint()])

    def _named(self, index: int, action: Callable[[Any], Any], record: Any) -> Any:
        try:
            return action(record)
        except SampleError as error:
            raise SampleError(error.key or self.key(index), error.reason) from error


def with_files(dataset: Any) -> Any:
    """Return a datasets.Dataset with images, videos and sounds as files; any other as it is.

    A probe reads files. One with a format of its own is left as it is: its rows may be anything.
    """
    kind: Any = getattr(sys.modules.get("datasets"), "Dataset", ())
    if not isinstance(dataset, kind) or dataset.format["type"] is not None:
        return dataset
    has_media = not {*MEDIA_COLUMNS}.isdisjoint(dataset.column_names)
    return _RowsWithFiles(dataset.with_format("arrow")) if has_media else dataset


class _RowsWithFiles:
    """Rows as Arrow has them: images are mappings of `bytes` and `path`."""

    def __init__(self, dataset: Any) -> None:
        self._rows = dataset

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        (row,) = self._rows[index : index + 1].to_pylist()
        return dict(row)
