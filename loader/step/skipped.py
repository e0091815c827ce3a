"""The samples that a loop without balancing leaves out: counted, on record, bounded."""

from typing import Any

from torch.utils.data import IterableDataset

from ...workers.daemon.skipping_fetcher import Fetched
from ...workers.sources.dead_letter import DeadLetter, append_letter
from ...workers.sources.interface import source_name
from .errors import LoaderError

ON_ERROR = ("raise", "skip", "refill")


class LeftOut:
    """What `on_error` ("skip" or "refill") has left out of this epoch's batches.

    Each sample is written to `dead_letter`, if there is one; more than `allowed` are an error.
    """

    def __init__(
        self, on_error: str, name: str, dead_letter: str | None, allowed: float | None
    ) -> None:
        self.on_error = on_error
        self.count = 0
        self._name = name
        self._dead_letter = dead_letter
        self._allowed = allowed

    def begin(self, count: int) -> None:
        """Begin to count at what was left out before."""
        self.count = count

    def take(self, fetched: Fetched) -> None:
        """Count what a batch that is handed out lacks; LoaderError where that is too much."""
        for hole in fetched.holes:
            self.count += 1
            if self._dead_letter is not None:
                letter = DeadLetter(hole.key, self._name, hole.reason, hole.kind)
                append_letter(self._dead_letter, letter)
        if self._allowed is not None and fetched.holes and self.count > self._allowed:
            last = fetched.holes[-1]
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
) -> LeftOut | None:
    """Return what a loop without balancing leaves out, None for on_error="raise" (torch's way).

    `max_errors` as `checked_max_errors` returns it. ValueError for what cannot be.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error is {on_error!r}, allowed are {ON_ERROR}")
    if on_error == "raise":
        return None
    stream = isinstance(dataset, IterableDataset)
    if on_error == "refill" and not (stream and batch_size):
        what = "a stream without batch_size" if stream else f"{type(dataset).__name__}, map-style"
        raise ValueError(
            f"on_error='refill' takes the next sample of an IterableDataset for batches of "
            f"batch_size, got {what}: use on_error='skip', which leaves the sample out"
        )
    if isinstance(max_errors, float):
        max_errors = int(max_errors * _count(dataset, max_errors))
    return LeftOut(on_error, source_name(dataset), dead_letter, max_errors)


def refuse_refill(on_error: str) -> None:
    """Raise ValueError for "refill" in a balanced loader."""
    if on_error == "refill":
        raise ValueError(
            "on_error='refill' cannot be balanced: a plan is made from all samples of a window, "
            "and another sample in a hole's place would change the batches of all ranks; use "
            "on_error='skip', which leaves a hole of weight 0"
        )


def _count(dataset: Any, part: float) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise ValueError(
            f"max_errors={part} is a part of the samples, and a {type(dataset).__name__} does not "
            "say how many it has (it has no len()): give a count"
        ) from None
