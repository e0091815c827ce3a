"""Grant leases: choose the samples that a worker probes or decodes next."""

from ...protocol.messages import Lease, SampleRef
from ..delivery.sample import Sample
from ..delivery.tracker import DeliveryTracker
from .lease_index import GrantedLease
from .leases import LeaseTable
from .planning_feed import PlanningFeed

# Samples in a lease.
PROBE_SAMPLES = 16
DECODE_SAMPLES = 4
# Where samples are decoded quickly, messages cost more than they do: so many, for about this time.
MOST_DECODE_SAMPLES = 16
DECODE_MS = 10.0
# Steps planned ahead of the front, so that nobody waits for planning.
STEPS_AHEAD = 3
# A lease without a result for this long is granted to an idle worker, too.
HELP_AFTER_S = 2.0


class LeaseGranter:
    """Grants leases on the samples of one run."""

    def __init__(
        self, epoch: int, leases: LeaseTable, feed: PlanningFeed, delivery: DeliveryTracker
    ) -> None:
        self.epoch = epoch
        self.leases = leases
        self.feed = feed
        self.delivery = delivery

    def grant(
        self, worker: bytes, now: float, workers: int = 1, decode_ms: float | None = None
    ) -> Lease | None:
        """Grant a worker its next lease, if there is work for it within the byte budget.

        `workers` are those that share the samples to probe; `decode_ms` is how long this one
        decodes a sample, None where that is not known.
        """
        most = decode_samples(decode_ms)
        for kind in self._kinds():
            samples = self._next_samples(kind, workers, most)
            if samples:
                return self._message(self.leases.grant(worker, kind, samples, now))
        return None

    def grant_shared(self, worker: bytes, now: float) -> Lease | None:
        """Grant an idle worker the samples of a slow one as well; the first result counts."""
        slow = self.leases.slowest(now - HELP_AFTER_S)
        if slow is None:
            return None
        return self._message(
            self.leases.grant(worker, slow.kind, slow.samples.values(), now, shared=slow)
        )

    def _kinds(self) -> tuple[str, ...]:
        """Return the kinds of work: decode first, unless the ranks soon run out of steps."""
        if len(self.delivery.steps) < STEPS_AHEAD - 1:
            return "probe", "decode"
        return "decode", "probe"

    def _next_samples(self, kind: str, workers: int, most: int) -> list[Sample]:
        if kind == "probe":
            return self.feed.next_samples(PROBE_SAMPLES, workers)
        return self.delivery.decoding.next_samples(most)

    def _message(self, lease: GrantedLease) -> Lease:
        refs = tuple(SampleRef(s.ordinal, s.index) for s in lease.samples.values())
        return Lease(lease.number, lease.kind, self.epoch, refs)


def decode_samples(each_ms: float | None) -> int:
    """Return the most samples of a lease, by the time that a worker decodes one.

    >>> decode_samples(None), decode_samples(16.0), decode_samples(1.0), decode_samples(0.1)
    (4, 4, 10, 16)
    """
    if not each_ms:
        return DECODE_SAMPLES
    return min(max(int(DECODE_MS / each_ms), DECODE_SAMPLES), MOST_DECODE_SAMPLES)
