"""The microbatches that a balanced loader gets, and the interface of where it gets them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...balancer.protocol.parts import Ready
from ...balancer.run.arrivals import LocalArrival, RunStart
from ..resume.balanced_position import ResumePosition
from ..step.info import StepInfo


class MicrobatchSource(Protocol):
    """The interface of LocalLoop, and of a TrainerConnection to a balancer.

    Every method may be interrupted by an exception, and called again.
    """

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""

    def wait_ready(self, timeout_s: float | None = None) -> Ready:
        """Wait until the job runs; TimeoutError after `timeout_s`."""

    def begin(self, start: RunStart) -> None:
        """Start the next run, and its workers."""

    def go_on(self, start: RunStart, /) -> None:
        """Start the next run as `begin` does, with the workers of this one."""

    def recover(self, start: RunStart) -> None:
        """Go on with the run at a position, if an exception has left something half done."""

    def finish(self) -> None:
        """End the run's workers: its iterator is at its end, or was dropped."""

    def next(self, timeout_s: float | None = None) -> LocalArrival | None:
        """Return the next microbatch, the same until it is released; None at the end of the run."""

    def release(self, arrival: Any) -> None:
        """Release a microbatch, and ask for those after it; does nothing the second time."""

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None, /
    ) -> int:
        """Return a step's label tokens on all ranks; `tokens` are those of each rank here."""

    def close(self) -> None:
        """Tell the balancer that this rank leaves."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A collated microbatch to be handed out, its StepInfo, and the position after it."""

    batch: Any
    info: StepInfo
    after: ResumePosition


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A microbatch of which nothing can be handed out, and the position after it."""

    after: ResumePosition


@dataclass(slots=True)
class Kept:
    """A microbatch that was fetched at a position, until one is fetched at another.

    reported: how many of its holes are in the dead-letter file; failures: how often it could not be
    unpacked.
    """

    arrival: LocalArrival
    at: ResumePosition
    reported: int = 0
    failures: int = 0
    unpacked: Fetched | PassedOver | None = None
