"""Where a balanced loader gets its microbatches: one interface for all that load them."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...balancer.run.tasks import LocalArrival, RunStart
from ...workers.sources.data_identity import KnownData
from ..resume.balanced_position import ResumePosition
from ..step.errors import LoaderError
from ..step.waiting import WaitLog
from .settings import LoopSettings

logger = logging.getLogger(__name__)


class MicrobatchSource:
    """Gives a process' microbatches: by its own workers, a balancer, or of a stream.

    Every method may be interrupted by an exception, and called again.
    """

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""
        return 0

    def count(self, timeout_s: float | None = None) -> int:
        """Return the number of samples; TimeoutError where it is not known within `timeout_s`."""
        raise NotImplementedError

    def begin(self, start: RunStart) -> Any:
        """Start the next run, and its workers; return where this rank is in its stream."""
        raise NotImplementedError

    def go_on(self, start: RunStart) -> None:
        """Start the next run as `begin` does, with the workers of this one."""
        self.begin(start)

    def recover(self, start: Callable[[], RunStart]) -> None:
        """Go on with the run at a position, if an exception has left something half done.

        start: returns the position; called only then.
        """
        raise NotImplementedError

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch, the same until it is released; None at the end of the run.

        Raises LoaderError when the run cannot go on, TimeoutError after `timeout_s`, RuntimeError
        for a worker that has ended, and what collate_fn raises.
        """
        raise NotImplementedError

    def release(self, arrival: LocalArrival) -> None:
        """Go on to the microbatches after this one; does nothing the second time."""
        raise NotImplementedError

    def add_up_labels(
        self,
        step: int,  # noqa: ARG002
        tokens: Mapping[int, int],
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> int:
        """Return a step's label tokens on all ranks; `tokens` are those of each rank here."""
        return sum(tokens.values())

    def finish(self) -> None:
        """End the run's workers: its iterator is at its end, or was dropped."""

    def close(self) -> None:
        """End all processes, and leave the other ranks."""


class BatchWait(WaitLog):
    """One wait for a batch; owner: what waits for it, as text."""

    def __init__(self, is_first: bool, owner: str) -> None:
        super().__init__(is_first)
        self._owner = owner

    def check(self, waited_s: float, limit_s: float, missing: str) -> None:
        """Log what is missing where that takes long; TimeoutError at the limit."""
        if waited_s >= limit_s:
            raise TimeoutError(f"no batch within {limit_s:g} s: waits for {missing}")
        if self.is_due(waited_s):
            logger.warning(
                "%s has waited %.0f s for %s; still missing: %s",
                self._owner, waited_s, self.awaited, missing,
            )  # fmt: skip


def refuse_forked_copy(owner: int) -> None:
    """Raise LoaderError in a forked child of the process that workers belong to."""
    if owner != os.getpid():
        raise LoaderError(
            f"this loader's workers belong to process {owner}, and a forked child cannot use them: "
            "make a new DataLoader in the child"
        )


class StreamLedgers(Protocol):
    """Writes and reads the ledger of one rank's stream."""

    def write_position(
        self, settings: LoopSettings, epoch: int, position: ResumePosition, data: KnownData
    ) -> dict[str, Any]:
        """Return the ledger of a position."""

    def read_position(
        self, settings: LoopSettings, state: Any, data: KnownData
    ) -> tuple[int, ResumePosition]:
        """Return the epoch and position of a ledger; ValueError if this rank cannot go on there."""
