"""Grant leases: choose the samples that a worker probes or decodes next."""

import math
from collections.abc import Iterable
from itertools import groupby

from ...protocol.messages import Lease, SampleRef, WholeMicrobatch
from ..delivery.sample import PLACE, Sample
from ..delivery.tracker import DeliveryTracker
from .lease_index import GrantedLease
from .leases import LeaseTable
from .planning_feed import PlanningFeed

# Samples in a lease, where it is not known how long they take.
PROBE_SAMPLES = 16
DECODE_SAMPLES = 4
# Where they are quick, messages cost more than they do: so many more, for about this time.
MOST_SAMPLES = 128
# And of a microbatch that workers lay out if they have all of it.
MOST_LAID_OUT = 1024
LEASE_MS = 10.0
# Steps planned ahead of the front, so that nobody waits for planning.
STEPS_AHEAD = 3
# To wake another worker takes about as long: what one decodes meanwhile is not shared out.
WAKING_MS = 2.0
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
        lays_out: bool = False,
    ) -> None:
        """`lays_out`: workers lay out the microbatches that they have all samples of."""
        self.epoch = epoch
        self.leases = leases
        self.feed = feed
        self.delivery = delivery
        self.lays_out = lays_out
        # While one worker quickly decodes what is first, others are not woken until this time.
        self._alone_until = -math.inf

    def grant(
        self,
        worker: bytes,
        now: float,
        workers: int = 1,
        probe_ms: float | None = None,
        decode_ms: float | None = None,
        rank: int | None = 0,
        usual_ms: float | None = None,
    ) -> Lease | None:
        """Grant a worker its next lease, if there is work for it within the byte budget.

        `workers` are those that share the samples to probe; `probe_ms` and `decode_ms` are how long
        this one takes for a sample, None where that is not known: for its share of the run's first
        microbatch it counts as `usual_ms` then, which others took to decode one. Of what is to be
        decoded next, the samples of `rank` come first; None: nothing is.
        """
        share = 0 if rank is None else self._share_of_first(workers, rank)
        if share:
            decode_ms = usual_ms if decode_ms is None else decode_ms
            alone = lease_samples(1, decode_ms, WAKING_MS)
            # One worker has all of it sooner than another could be woken.
            if alone >= share * workers:
                took_ms = WAKING_MS + share * workers * (decode_ms or 0.0)
                self._alone_until = now + took_ms / 1000
            share = max(share, alone)
        elif now < self._alone_until and self._awaits_first():
            return None
        for kind in ("decode", "probe") if share else self._kinds():
            if kind == "probe":
                samples = self._to_probe(workers, probe_ms)
            else:
                samples = self._to_decode(rank, decode_ms, share)
            if samples:
                return self._message(self.leases.grant(worker, kind, samples, now))
        return None

    def has_work(self) -> bool:
        """Return whether there is anything to decode, or to probe; `grant` finds none otherwise."""
        return self.delivery.decoding.has_samples() or self.feed.has_to_probe(MOST_SAMPLES)

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

    def _to_decode(self, rank: int | None, each_ms: float | None, share: int = 0) -> list[Sample]:
        if rank is None:
            return []
        most = lease_samples(DECODE_SAMPLES, each_ms)
        if share:
            return self.delivery.decoding.next_samples(min(most, share), rank)
        spans = most > DECODE_SAMPLES
        whole = lease_samples(0, each_ms, most=MOST_LAID_OUT) if spans and self.lays_out else 0
        return self.delivery.decoding.next_samples(most, rank, spans, whole)

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

    def _share_of_first(self, workers: int, rank: int) -> int:
        """Return a worker's share of the run's first microbatches, 0 if others are decoded next.

        Ranks wait for nothing else then: all workers decode them, and their leases hold no others.
        """
        delivery = self.delivery
        if delivery.has_sent or delivery.decoding.next_position(rank) != (front := delivery.front):
            return 0
        step, microbatch = front
        ranks = delivery.steps[step].ranks
        return -(-sum(len(each[microbatch].samples) for each in ranks) // max(workers, 1))

    def _awaits_first(self) -> bool:
        """Return whether nothing was sent, and nothing that is to be sent first is decoded."""
        step, microbatch = self.delivery.front
        ranks = self.delivery.steps[step].ranks if step >= 0 else ()
        return not self.delivery.has_sent and all(each[microbatch].missing for each in ranks)

    def _message(self, lease: GrantedLease) -> Lease:
        samples: Iterable[Sample] = lease.samples.values()
        whole: tuple[WholeMicrobatch, ...] = ()
        if self.lays_out and lease.kind == "decode" and not lease.alone:
            samples, whole = self._whole(samples)
        refs = tuple([SampleRef(s.ordinal, s.index) for s in samples])
        return Lease(lease.number, lease.kind, self.epoch, refs, alone=lease.alone, whole=whole)

    def _whole(self, samples: Iterable[Sample]) -> tuple[list[Sample], tuple[WholeMicrobatch, ...]]:
        """Return samples, and the microbatches that these are all of, as in Lease.

        Those of such a microbatch are in its own order.
        """
        ordered, whole = list[Sample](), list[WholeMicrobatch]()
        for (step, microbatch, rank), group in groupby(samples, PLACE):
            own = list(group)
            found = self.delivery.planned.find(rank, step, microbatch)
            if found is not None and 1 < len(own) == len(found[1].samples):
                own = [*found[1].samples]
                whole.append(WholeMicrobatch(len(ordered), len(own)))
            ordered += own
        return ordered, tuple(whole)


def lease_samples(
    least: int, each_ms: float | None, lease_ms: float = LEASE_MS, most: int = MOST_SAMPLES
) -> int:
    """Return the most samples of a lease of `lease_ms`, by the time that a worker takes for one.

    >>> [lease_samples(4, each_ms) for each_ms in (None, 16.0, 1.0, 0.05)]
    [4, 4, 10, 128]
    """
    if each_ms is None:
        return least
    # Far below what may be infinitely many.
    return max(least, int(min(lease_ms / max(each_ms, 1e-3), most)))
