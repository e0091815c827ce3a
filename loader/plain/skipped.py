"""Counts, records and bounds the samples that a loop without balancing leaves out."""

from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ...workers.sources.failures import OnError, SkippedSample, checked_on_error
from ...workers.sources.interface import source_name
from ..step.errors import LoaderError


class LeftOut:
    """The samples that `on_error` ("skip" or "refill") has left out of this epoch's batches.

    Each sample is written to `dead_letter`, if there is one; more than `allowed` are an error.
    """

    def __init__(
        self,
        on_error: OnError,
        name: str,
        dead_letter: str | None,
        allowed: float | None,
        stats: Any = None,
    ) -> None:
        self.on_error = on_error
        self.count = 0
        self._name = name
        self._dead_letter = dead_letter
        self._allowed = allowed
        self._stats = stats

    def begin(self, count: int) -> None:
        """Begin to count at the number that was left out before."""
        self.count = count

    def take(self, holes: tuple[SkippedSample, ...]) -> None:
        """Count what a batch that is handed out lacks; LoaderError where that is too much."""
        if self._stats is not None:
            self._stats.take_holes(holes)
        for hole in holes:
            self.count += 1
            if self._dead_letter is not None:
                from ...workers.sources.dead_letters import record_letter

                letter = replace(hole, source=hole.source or self._name)
                record_letter(self._dead_letter, letter)
        if self._allowed is not None and holes and self.count > self._allowed:
            last = holes[-1]
            where = f", see {self._dead_letter}" if self._dead_letter else ""
            raise LoaderError(
                f"{self.count} samples of this epoch could not be used, and max_errors allows "
                f"{self._allowed:g}{where}; the last: {last.key!r}: {last.reason}: repair the "
                "data, or allow more"
            )


def make_left_out(
    dataset: Any,
    batch_size: int | None,
    on_error: str,
    dead_letter: str | None,
    max_errors: float | None,
    stats: Any = None,
) -> LeftOut | None:
    """Return a counter of the samples left out; None for on_error="raise" (torch's way).

    `max_errors` as `checked_max_errors` returns it. ValueError for what cannot be.
    """
    no_refill = "" if batch_size else "got a stream without batch_size"
    if not isinstance(dataset, IterableDataset):
        no_refill = f"got {type(dataset).__name__}, map-style"
    policy = checked_on_error(on_error, no_refill)
    if policy == "raise":
        return None
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise ValueError(
            f"on_error={policy!r} cannot leave samples of a {type(dataset).__name__} out, which is "
            "a DataPipe: leave them out in the pipe, or give an IterableDataset"
        )
    if isinstance(max_errors, float):
        try:
            max_errors = int(max_errors * len(dataset))
        except TypeError:
            raise ValueError(
                f"max_errors={max_errors} is a part of the samples, and a {type(dataset).__name__} "
                "does not say how many it has (it has no len()): give a count"
            ) from None
    if dead_letter is not None:
        from ...workers.sources.dead_letters import checked_path

        dead_letter = checked_path(dead_letter)
    return LeftOut(policy, source_name(dataset), dead_letter, max_errors, stats)
