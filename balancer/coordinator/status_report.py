"""What the balancer tells people who look: how the run goes, and a note on each peer.

Everything here only reads. Texts that came from peers are cut, and of many peers only the most
telling are noted: workers that do not work, then those heard of longest ago; trainers that wait,
then those that have asked longest ago.
"""

from collections import Counter
from collections.abc import Iterable

from ..protocol.messages import Hole, RequestBatch, StatusReport, TrainerStatus, WorkerStatus
from .delivery.sample import Sample
from .delivery.tracker import DeliveryTracker
from .peers import RankPeer, WorkerPeer
from .run.epoch import EpochRun
from .state import CoordinatorState

# Workers and trainers that an overview notes, and characters of a text that came from a peer.
MAX_NOTES, MAX_TEXT = 256, 200
# A trainer that has nothing to train on says so every second.
WAITS_S = 2.5


def overview(hall: CoordinatorState, number: int, waiting: str) -> StatusReport:
    """Return what there is to say of the coordinator's state, whatever its size."""
    run, books, now = hall.run, hall.books, hall._now
    delivery = run.delivery if run else DeliveryTracker(0, 0, False)
    leases = run.leases.per_worker() if run else Counter[bytes]()
    return StatusReport(
        number=number,
        clock_us=books.clock_us(now),
        software=cut(books.software),
        workers=len(hall._workers),
        trainers=len(hall._ranks),
        waiting=waiting,
        trouble=cut(hall.trouble.reason) if hall.trouble else "",
        epoch=run.begin.epoch if run else -1,
        front=delivery.front[0],
        held_bytes=delivery.held_bytes,
        reserved_bytes=delivery.reserved_bytes,
        budget_bytes=delivery.bytes.most,
        largest_bytes=delivery.bytes.largest,
        settled=bool(delivery.steps) and not leases and all(map(_is_whole, _missing(delivery))),
        leases=leases.total(),
        expired=books.expired,
        expired_ms=_ago_ms(now, books.expired_at) if books.expired else -1,
        lost=books.lost,
        lost_ms=_ago_ms(now, books.lost_at) if books.lost else -1,
        last_lost=tuple(map(cut, books.last_lost)),
        dropped=hall.dropped,
        refused=books.refused,
        turned_away=tuple(map(cut, books.turned_away)),
        holes=run.holes if run else 0,
        last_holes=tuple(_cut_hole(hole) for hole in run.last_holes) if run else (),
        notes=worker_notes(hall, leases),
        ranks=rank_notes(hall),
    )


def worker_notes(hall: CoordinatorState, leases: Counter[bytes]) -> tuple[WorkerStatus, ...]:
    """Return notes on the workers, at most MAX_NOTES."""

    def telling(worker: WorkerPeer) -> tuple[bool, bool, float, str]:
        ready = hall._states.get(worker.peer) == "worker ready"
        return ready, not worker.late, worker.heard, worker.hello.name

    chosen = sorted(hall._workers.values(), key=telling)[:MAX_NOTES]
    return tuple(_worker_note(hall, worker, leases[worker.peer]) for worker in chosen)


def rank_notes(hall: CoordinatorState) -> tuple[TrainerStatus, ...]:
    """Return notes on the trainer processes, at most MAX_NOTES."""
    asked = hall._asks.first_of(hall.run.number) if hall.run else {}
    notes = [_rank_note(hall, rank, asked.get(rank.peer)) for rank in hall._ranks.values()]
    notes.sort(key=lambda note: (not note.waits, -note.asked_ms, note.ranks))
    return tuple(notes[:MAX_NOTES])


def needs(run: EpochRun, ask: RequestBatch) -> str:
    """Say in a few words what a microbatch lacks that was asked for; empty if it lacks nothing."""
    step = run.delivery.steps.get(ask.step)
    if step is None:
        return "its step to be planned"
    if not (ask.rank < len(step.ranks) and 0 <= ask.microbatch < len(step.ranks[ask.rank])):
        return "nothing: its step has fewer microbatches"
    batch = step.ranks[ask.rank][ask.microbatch]
    if batch.missing:
        return f"{_lacking(batch.samples)} of {len(batch.samples)} samples to be decoded"
    if run.delivery.gated and step.unsettled:
        return f"its step's holes to be known: {step.unsettled} samples are not decoded yet"
    return ""


def cut(text: str) -> str:
    """Return a text that came from a peer, cut to what an overview holds."""
    return text[:MAX_TEXT]


def _lacking(samples: Iterable[Sample]) -> str:
    open_samples = [s for s in samples if s.payload is None and not s.reason]
    leased = sum(sample.reserved > 0 for sample in open_samples)
    if leased == len(open_samples):
        return f"{leased}"
    return f"{len(open_samples)} (no worker has {len(open_samples) - leased} of them yet)"


def _worker_note(hall: CoordinatorState, worker: WorkerPeer, leases: int) -> WorkerStatus:
    done, (recent, recent_s) = worker.tally.done, worker.tally.recent(hall._now)
    return WorkerStatus(
        name=cut(worker.hello.name),
        host=cut(worker.hello.host),
        software=cut(worker.hello.software),
        fingerprint=cut(worker.fingerprint),
        state=hall._states.get(worker.peer, "").removeprefix("worker "),
        late=worker.late,
        heard_ms=_ago_ms(hall._now, worker.heard),
        leases=leases,
        samples=done.probed + done.decoded,
        probed=done.probed,
        decoded=done.decoded,
        failed=done.failed,
        nbytes=done.nbytes,
        recent_ms=round(1000 * recent_s),
        recent_probed=recent.probed,
        recent_decoded=recent.decoded,
        recent_bytes=recent.nbytes,
        recent_probe_ms=recent.probe_ms,
        recent_decode_ms=recent.decode_ms,
        ahead_us=worker.clock.ahead_us,
        error_us=worker.clock.error_us,
    )


def _rank_note(
    hall: CoordinatorState, rank: RankPeer, asked: tuple[RequestBatch, float] | None
) -> TrainerStatus:
    begun, state = rank.begun, hall._states.get(rank.peer, "").removeprefix("rank ")
    return TrainerStatus(
        ranks=_spans(rank.hello.ranks),
        state="finished" if rank.finished else state,
        epoch=begun.epoch if begun else -1,
        step=asked[0].step if asked else -1,
        microbatch=asked[0].microbatch if asked else -1,
        asked_ms=_ago_ms(hall._now, asked[1]) if asked else -1,
        waits=bool(asked) and hall._now - rank.pinged <= WAITS_S,
        needs=needs(hall.run, asked[0]) if asked and hall.run else "",
        ahead_us=rank.clock.ahead_us,
        error_us=rank.clock.error_us,
    )


def _missing(delivery: DeliveryTracker) -> Iterable[int]:
    for step in delivery.steps.values():
        for microbatches in step.ranks:
            yield from (batch.missing for batch in microbatches if not batch.taken)


def _is_whole(missing: int) -> bool:
    return not missing


def _spans(ranks: tuple[int, ...]) -> str:
    """Return ranks as text.

    >>> _spans((0, 1, 2, 3, 6))
    '0-3, 6'
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return cut(", ".join(f"{a}-{b}" if a < b else str(a) for a, b in spans))


def _cut_hole(hole: Hole) -> Hole:
    return Hole(hole.ordinal, cut(hole.key), cut(hole.reason))


def _ago_ms(now: float, then: float) -> int:
    return max(0, round(1000 * (now - then)))
