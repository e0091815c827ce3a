"""`ProcessedRecords`: a map-style data set of records, as a source of samples with their costs."""

from collections.abc import Callable
from typing import Any

from ..sources.fingerprint import digest
from ..sources.interface import PlainSource, Probe, SampleError
from .transform import RecordProcessor


class ProcessedRecords:
    """The samples that a processor makes of a data set's records; costs come without pixels."""

    def __init__(self, dataset: Any, processor: RecordProcessor) -> None:
        self.records = dataset
        self._records = PlainSource(dataset)
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
        found = self._named(index, self._processor.probe, self._records[index])
        return Probe(self.key(index), found.cost, found.nbytes)

    def load(self, index: int, epoch: int, seed: int) -> Any:
        """Return the sample of a record; a data set that draws does so from (seed, epoch, key)."""
        return self._named(index, self._processor, self._records.load(index, epoch, seed))

    def fingerprint(self) -> str:
        """Return a hash of the data set's and the processor's."""
        return digest([self._records.fingerprint(), self._processor.fingerprint()])

    def _named(self, index: int, action: Callable[[Any], Any], record: Any) -> Any:
        try:
            return action(record)
        except SampleError as error:
            raise SampleError(error.key or self.key(index), error.reason) from error
