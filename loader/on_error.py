"""`OnError`: what samples and workers that fail do to a loop."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ..balancer.near_names import check_name, explain_arguments
from ..workers.arena import memory
from ..workers.batches.envelope import is_stateful
from ..workers.sources.failures import ERROR_ACTIONS, ErrorAction


@explain_arguments()
@dataclass(frozen=True, slots=True)
class OnError:
    """What a sample that cannot be used does to a loop; wrong values raise ValueError.

    Args:
        action: "raise" ends the run, "skip" leaves the sample out, "refill" (a stream without
            balance) takes the next one in its place; default "raise".
        dead_letter: A file that gets a JSON line for each sample left out; default none.
        max_errors: Most samples that an epoch may leave out: a count, or a float, part of them;
            default any number.
        worker_restarts: At most this many dead workers are replaced in an epoch, and a sample that
            kills three is left out; default 0, with "skip" 3. Not for streams, or with a state.

    >>> OnError("skip", max_errors=0.01).max_errors
    0.01
    """

    action: ErrorAction = "raise"
    _: KW_ONLY
    dead_letter: str | None = None
    max_errors: float | None = None
    worker_restarts: int | None = None

    def __post_init__(self) -> None:
        check_name("on_error", self.action, ERROR_ACTIONS)
        if self.dead_letter is not None and self.action == "raise":
            raise ValueError(
                f"dead_letter={self.dead_letter!r} records samples that on_error='skip' leaves "
                "out, and on_error is 'raise': give "
                f"OnError('skip', dead_letter={self.dead_letter!r}), or leave dead_letter"
            )
        max_errors, restarts = self.max_errors, self.worker_restarts
        if max_errors is not None and self.action == "raise":
            raise ValueError(
                f"max_errors={max_errors} counts samples that on_error='skip' leaves out: give "
                f"OnError('skip', max_errors={max_errors}), or leave max_errors"
            )
        is_number = isinstance(max_errors, int | float) and not isinstance(max_errors, bool)
        limit = 1.0 if isinstance(max_errors, float) else math.inf
        if max_errors is not None and not (is_number and 0 <= max_errors < limit):
            raise ValueError(
                f"max_errors is {max_errors!r}: give a count, or a part of the samples such as 0.01"
            )
        if restarts is not None and (type(restarts) is not int or restarts < 0):
            raise ValueError(f"worker_restarts is {restarts!r}, allowed are 0, 1, 2 and so on")

    @property
    def restarts(self) -> int:
        """How many dead workers an epoch replaces; by default none without shared memory."""
        if self.worker_restarts is not None:
            return self.worker_restarts
        return 3 if self.action == "skip" and not memory.find_memory_file_fault() else 0


def as_on_error(on_error: OnError | ErrorAction) -> OnError:
    """Return an OnError; the name of an action is short for it."""
    return on_error if isinstance(on_error, OnError) else OnError(on_error)


def count_restarts(on_error: OnError, dataset: Any, num_workers: int) -> int:
    """Return how many workers a plain loader replaces; ValueError where that was asked in vain.

    A stream's worker, or that of a data set with a state, would begin elsewhere than it was.
    """
    is_possible = not isinstance(dataset, IterableDataset | IterDataPipe | MapDataPipe)
    is_possible = is_possible and not is_stateful(dataset)
    if on_error.worker_restarts and not is_possible:
        raise ValueError(
            f"worker_restarts={on_error.worker_restarts}, and a worker of a "
            f"{type(dataset).__name__} cannot go on where another has died: it is a stream, or has "
            "a state; leave worker_restarts"
        )
    return on_error.restarts if is_possible and num_workers else 0
