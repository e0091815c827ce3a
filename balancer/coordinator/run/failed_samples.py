"""Samples that are given up: those that fail, and those on which workers die or hang."""

from collections import deque

from ...protocol.messages import Hole
from ..delivery.sample import Sample, SampleFailure
from ..delivery.tracker import DeliveryTracker
from .planning_feed import PlanningFeed
from .poison_samples import SuspectedSample

# A sample on which this many workers died or hung is given up; see poison_samples.py.
MAX_CRASHES = 3
# The last samples that were given up are remembered by name.
HOLES_REMEMBERED = 4


class FailedSamples:
    """Turns samples into holes, and counts them."""

    def __init__(self, feed: PlanningFeed, delivery: DeliveryTracker, on_error: str) -> None:
        """With `on_error` "raise" a failed sample ends the run when its microbatch is due."""
        self.feed = feed
        self.delivery = delivery
        self.on_error = on_error
        self.count = 0
        self.last: deque[Hole] = deque(maxlen=HOLES_REMEMBERED)

    def give_up(self, sample: Sample, key: str, reason: str, io: bool, source: str = "") -> None:
        """Turn a sample into a hole; an `io` error ends the run whatever `on_error` is."""
        sample.key = sample.key or key
        self.count += 1
        self.last.append(Hole(sample.ordinal, sample.key, reason, source))
        self.feed.store_failure(sample, key)
        self.delivery.fail(sample, SampleFailure(reason, source, io or self.on_error == "raise"))

    def count_crash(self, suspect: SuspectedSample) -> None:
        """Count a worker that died or hung on a sample; give it up when there were too many.

        A guess counts once, to have the sample leased alone; from then on only certainty counts.
        """
        sample = suspect.sample
        if sample.crash_count and not suspect.is_certain:
            return
        sample.crash_count += 1
        if sample.crash_count >= MAX_CRASHES:
            reason = f"{MAX_CRASHES} worker processes died or hung while they worked on it"
            self.give_up(sample, sample.key or str(sample.index), reason, io=False)
