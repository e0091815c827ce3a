"""Counts, records and bounds the samples that a loop without balancing leaves out."""

from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ...workers.sources.failures import SkippedSample, refuse_refill
from ...workers.sources.interface import source_name
from ..on_error import OnError
from ..step.errors import LoaderError


class LeftOut:
    """The samples that `on_error` ("skip" or "refill") has left out of this epoch's batches.

    Each sample is written to its `dead_letter`, if there is one; more than `max_errors`, a count
    here, are an error.
    """

    def __init__(self, on_error: OnError, name: str, stats: Any = None) -> None:
        self.on_error = on_error
        self.count = 0
        self._name = name
        self._stats = stats

    def begin(self, count: int) -> None:
        """Begin to count at the number that was left out before."""
        self.count = count

    def take(self, holes: tuple[SkippedSample, ...]) -> None:
        """Count what a batch that is handed out lacks; LoaderError where that is too much."""
        if self._stats is not None:
            self._stats.take_holes(holes)
        dead_letter, limit = self.on_error.dead_letter, self.on_error.max_errors
        for hole in holes:
            self.count += 1
            if dead_letter is not None:
                from ...workers.sources.dead_letters import record_letter

                letter = replace(hole, source=hole.source or self._name)
                record_letter(dead_letter, letter)
        if limit is not None and holes and self.count > limit:
            last = holes[-1]
            where = f", see {dead_letter}" if dead_letter else ""
            raise LoaderError(
                f"{self.count} samples of this epoch could not be used, and max_errors allows "
                f"{limit:g}{where}; the last: {last.key!r}: {last.reason}: repair the "
                "data, or allow more"
            )


def make_left_out(
    dataset: Any, batch_size: int | None, on_error: OnError, stats: Any = None
) -> LeftOut | None:
    """Return a counter of the samples left out; None for on_error="raise" (torch's way).

    ValueError for what cannot be.
    """
    no_refill = "" if batch_size else "got a stream without batch_size"
    if not isinstance(dataset, IterableDataset):
        no_refill = f"got {type(dataset).__name__}, map-style"
    refuse_refill(on_error.action, no_refill)
    if on_error.action == "raise":
        return None
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise ValueError(
            f"on_error={on_error.action!r} cannot leave samples of a {type(dataset).__name__} out, "
            "which is a DataPipe: leave them out in the pipe, or give an IterableDataset"
        )
    if isinstance(part := on_error.max_errors, float):
        try:
            on_error = replace(on_error, max_errors=int(part * len(dataset)))
        except TypeError:
            raise ValueError(
                f"max_errors={part} is a part of the samples, and a {type(dataset).__name__} "
                "does not say how many it has (it has no len()): give a count"
            ) from None
    if on_error.dead_letter is not None:
        from ...workers.sources.dead_letters import checked_path

        on_error = replace(on_error, dead_letter=checked_path(on_error.dead_letter))
    return LeftOut(on_error, source_name(dataset), stats)
