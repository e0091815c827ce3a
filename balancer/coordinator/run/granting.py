"""Grant leases: choose the samples that a worker probes or decodes next."""

from ...protocol.messages import Lease, SampleRef
from ..delivery.sample import Sample
from ..delivery.tracker import DeliveryTracker
from .leases import GrantedLease, LeaseTable
from .planning_feed import PlanningFeed

# Samples in a lease, where it is not known how long they take.
PROBE_SAMPLES = 16
DECODE_SAMPLES = 4
# Where they are quick, messages cost more than they do: so many more, for about this time.
MOST_SAMPLES = 128
LEASE_MS = 10.0
# Steps planned ahead of the front, so that nobody waits for planning.
STEPS_AHEAD = 3
# A lease without a result for this long is granted to an idle worker, too.
HELP_AFTER_S = 2.0


class LeaseGranter:
    """Grants leases on the samples of one run."""

    def __init__(
        self,
        epoch: int,
        leases: LeaseTable,
        feed: PlanningFeed,
        delivery: DeliveryTracker,
    ) -> None:
        self.epoch = epoch
        self.leases = leases
        self.feed = feed
        self.delivery = delivery

    def grant(
        self,
        worker: bytes,
        now: float,
        workers: int = 1,
        probe_ms: float | None = None,
        decode_ms: float | None = None,
        rank: int | None = 0,
    ) -> Lease | None:
        """Grant a worker its next lease, if there is work for it within the byte budget.

        `workers` are those that share the samples to probe; `probe_ms` and `decode_ms` are how long
        this one takes for a sample, None where that is not known. Of what is to be decoded next,
        the samples of `rank` come first; None: nothing is.
        """
        for kind in self._kinds():
            if kind == "probe":
                samples = self._to_probe(workers, probe_ms)
            else:
                samples = self._to_decode(rank, decode_ms)
            if samples:
                return self._message(self.leases.grant(worker, kind, samples, now))
        return None

    def has_work(self) -> bool:
        """Return whether there is anything to decode, or to probe; `grant` finds none otherwise."""
        return self.delivery.decoding.nearest(0) is not None or self.feed.has_to_probe(MOST_SAMPLES)

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

    def _to_decode(self, rank: int | None, each_ms: float | None) -> list[Sample]:
        if rank is None:
            return []
        most = lease_samples(DECODE_SAMPLES, each_ms)
        return self.delivery.decoding.next_samples(most, rank, spans=most > DECODE_SAMPLES)

    def _to_probe(self, workers: int, each_ms: float | None) -> list[Sample]:
        # Asked first: after most messages there is nothing to probe.
        if not self.feed.has_to_probe(MOST_SAMPLES):
            return []
        most = lease_samples(PROBE_SAMPLES, each_ms)
        if most <= PROBE_SAMPLES:
            return self.feed.next_samples(most, workers)
        # Shares of what is quick would end in leases of one sample each, and so would windows.
        self.feed.open_ahead(most)
        return self.feed.next_samples(most)

    def _message(self, lease: GrantedLease) -> Lease:
        refs = tuple([SampleRef(s.ordinal, s.index) for s in lease.samples.values()])
        return Lease(lease.number, lease.kind, self.epoch, refs, alone=lease.alone)


def lease_samples(least: int, each_ms: float | None) -> int:
    """Return the most samples of a lease, by the time that a worker takes for one.

    >>> [lease_samples(4, each_ms) for each_ms in (None, 16.0, 1.0, 0.05)]
    [4, 4, 10, 128]
    """
    if each_ms is None:
        return least
    # Far below what may be infinitely many.
    return max(least, int(min(LEASE_MS / max(each_ms, 1e-3), MOST_SAMPLES)))
