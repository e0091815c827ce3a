"""Samples that had to be loaded to be measured, kept by a worker until they are asked for."""

import threading
from typing import Any

from ..sources.costs import sample_nbytes


class KeptSamples:
    """Samples of one epoch that were loaded to be measured; the next load of one takes it.

    most_bytes: what there is no room for is not kept, since others were asked for before it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._room, self._most = most_bytes, most_bytes
        self._epoch = -1
        self._samples: dict[int, tuple[Any, int]] = {}
        self._lock = threading.Lock()  # several threads load

    def begin(self, epoch: int) -> None:
        """Forget the samples of other epochs."""
        if epoch != self._epoch:
            self._epoch, self._room, self._samples = epoch, self._most, {}

    def has(self, index: int) -> bool:
        """Return whether a sample of this epoch is here."""
        return index in self._samples

    def add(self, index: int, epoch: int, sample: Any) -> None:
        """Keep a sample, of this epoch and while there is room."""
        nbytes = sample_nbytes(sample)
        if epoch == self._epoch and nbytes <= self._room:
            with self._lock:
                self._room -= nbytes
                self._samples[index] = sample, nbytes

    def take(self, index: int, epoch: int) -> tuple[Any] | None:
        """Return a sample, which is not kept any more; None if it is not here."""
        with self._lock:
            if epoch != self._epoch or index not in self._samples:
                return None
            sample, nbytes = self._samples.pop(index)
            self._room += nbytes
            return (sample,)
