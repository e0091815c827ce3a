"""The status report of a played job, which `counterpoise doctor`, `top` and `--metrics` show.

Everything here only reads. Texts that came from peers are cut, and of many peers only the most
important are noted: workers that are not ready, or late, then those silent for longest; trainers
that wait, then those that have had nothing for longest.
"""

from collections.abc import Sequence

from ..parties.run_attempt import RankQueue
from ..parties.seats import TrainerPeer, format_ranks
from ..pool.workers import PoolWorker
from ..protocol.parts import Hole
from ..protocol.status_messages import (
    MICROSECONDS,
    UNKNOWN_US,
    ClockOffset,
    StatusReport,
    TrainerStatus,
    WorkerStatus,
)
from .admission import AdmittedWorker
from .effects import Diagnostics
from .job import PlayedJob

# Workers and trainers that a report notes, and characters of a text that came from a peer.
MAX_NOTES, MAX_TEXT = 256, 200
# A trainer that waits for a microbatch asks why every second; after this it waits no more.
WAITS_S = 2.5
# A worker at one sample for this share of lease_s, after which it is given up, is late.
LATE_SHARE = 0.5


def make_status_report(
    job: PlayedJob, diagnostics: Diagnostics, now: float, number: int
) -> StatusReport:
    """Return a report of bounded size at a time in seconds; `number` is the question's."""
    parties, pool, events, source = job.parties, job.pool, job.events, job.admission.source
    run = job.player.run
    ahead_us = round(diagnostics.wall_ahead_s * MICROSECONDS)
    stopped = (each.stopped.reason for each in parties.peers.values() if each.stopped is not None)
    attempt = parties.attempt
    queues = [] if attempt is None else attempt.queues
    firsts = [_place(job, queue, queue.first)[0] for queue in queues]
    trainers = _note_trainers(job, now, ahead_us)
    return StatusReport(
        number=number, clock_us=round(now * MICROSECONDS) + ahead_us,
        software=_cut(diagnostics.software), workers=len(job.admission.workers),
        trainers=len(parties.peers), waiting=_cut(_waits_for(job, trainers, now)),
        trouble=_cut(next(stopped, "")),
        epoch=-1 if attempt is None else attempt.start.epoch,
        front=min((step for step in firsts if step >= 0), default=-1),
        held_bytes=pool.kept_bytes, budget_bytes=job.spec.buffer_bytes,
        is_full=run is not None and run.status_of(0)[2], all_decoded=pool.has_all,
        loads_to_measure=source is not None and source.loads_first,
        parts=sum(len(each.given) for each in pool.workers.values()),
        lost=events.lost, lost_ms=_ago_ms(now, events.lost_at) if events.lost else -1,
        last_lost=tuple(map(_cut, events.last_lost)), dropped=events.late,
        refused=diagnostics.refused, turned_away=events.turned_away,
        rejected_workers=tuple(map(_cut, events.last_refused)), holes=events.holes,
        last_holes=tuple(
            Hole(hole.ordinal, _cut(hole.key), _cut(hole.reason), _cut(hole.source))
            for hole in events.last_holes
        ),
        over_budget=events.over_budget, worker_statuses=_note_workers(job, now, ahead_us),
        trainer_statuses=trainers,
    )  # fmt: skip


def _waits_for(job: PlayedJob, trainers: Sequence[TrainerStatus], now: float) -> str:
    """Return in a few words what the run waits for, "" for nothing."""
    if not trainers:
        return job.admission.waits_for or "a trainer"
    if job.parties.attempt is None:
        return job.admission.waits_for or job.parties.starts.waits_for(now)
    return trainers[0].missing


def _note_workers(job: PlayedJob, now: float, ahead_us: int) -> tuple[WorkerStatus, ...]:
    pool, admitted = job.pool, job.admission.workers

    def importance(peer: bytes) -> tuple[bool, bool, float, str]:
        known, name = pool.workers.get(peer), admitted[peer].hello.name
        if known is None:
            return False, False, 0.0, name
        return True, not pool.hangs(known, LATE_SHARE), known.heard, name

    peers = sorted(admitted, key=importance)[:MAX_NOTES]
    return tuple(
        _note_worker(job, admitted[peer], pool.workers.get(peer), now, ahead_us) for peer in peers
    )


def _note_worker(
    job: PlayedJob, worker: AdmittedWorker, known: PoolWorker | None, now: float, ahead_us: int
) -> WorkerStatus:
    hello, stats, opened = worker.hello, worker.stats, worker.opened
    done, recent = stats.done, stats.recent()
    state = "opening" if known is None else "leaving" if known.is_leaving else "ready"
    why = 'transport="inline" was given' if job.spec.transport == "inline" else worker.why_inline
    if not worker.server.address:
        why = "the balancer has keys, and this worker would serve without"
    return WorkerStatus(
        name=_cut(hello.name), host=_cut(hello.host), software=_cut(hello.software),
        fingerprint="" if opened is None else _cut(opened.fingerprint), state=state,
        unresponsive=known is not None and job.pool.hangs(known, LATE_SHARE),
        last_message_ms=_ago_ms(now, stats.since if known is None else known.heard),
        parts=0 if known is None else len(known.given), probed=done["probed"],
        decoded=done["decoded"], failed=done["failed"], nbytes=done["nbytes"],
        recent_ms=_ago_ms(now, stats.since), recent_probed=recent["probed"],
        recent_decoded=recent["decoded"], recent_bytes=recent["nbytes"],
        recent_decode_ms=recent["decode_ms"], recent_busy_ms=recent["busy_ms"],
        recent_cpu_ms=recent["cpu_ms"], ahead_us=_ahead(stats.clock, ahead_us),
        transport=_cut(f"inline: {why}") if why and hello.address else _cut(hello.transport),
    )  # fmt: skip


def _note_trainers(job: PlayedJob, now: float, ahead_us: int) -> tuple[TrainerStatus, ...]:
    notes = [_note_trainer(job, each, now, ahead_us) for each in job.parties.peers.values()]
    notes.sort(key=lambda note: (not note.is_waiting, -note.oldest_request_ms, note.ranks))
    return tuple(notes[:MAX_NOTES])


def _note_trainer(job: PlayedJob, trainer: TrainerPeer, now: float, ahead_us: int) -> TrainerStatus:
    begun, place, lacks = trainer.begun, (-1, -1), False
    state = "joined" if begun is None else "waits for others"
    if (hindmost := job.parties.find_hindmost(trainer)) is not None:
        queue, taker = hindmost
        is_over = queue.is_over(taker.have)
        lacks = taker.upto > taker.have and not is_over
        place, state = _place(job, queue, taker.have), "finished" if is_over else "running"
    is_waiting = trainer.asked_at >= max(trainer.moved_at, now - WAITS_S)
    lacks |= is_waiting
    # -1: there is no run, the step is not planned, nothing is asked for.
    return TrainerStatus(
        ranks=_cut(format_ranks(trainer.hello.ranks)),
        state="stopped" if trainer.stopped is not None else state,
        epoch=-1 if begun is None else begun.epoch, step=place[0], microbatch=place[1],
        oldest_request_ms=_ago_ms(now, trainer.moved_at) if lacks else -1, is_waiting=is_waiting,
        missing=_cut(job.parties.waiting(trainer)) if lacks else "",
        ahead_us=_ahead(trainer.clock, ahead_us), waited_ms=trainer.waited_ms,
    )  # fmt: skip


def _place(job: PlayedJob, queue: RankQueue, index: int) -> tuple[int, int]:
    """Return step and number of a rank's microbatch, by its number in the run; -1 if unknown."""
    if (batch := queue.batches.get(index)) is not None:
        return batch.give.facts.step, batch.give.facts.microbatch
    run = job.player.run
    return (-1, -1) if run is None else run.status_of(queue.rank)[:2]


def _cut(text: str) -> str:
    return text[:MAX_TEXT]


def _ago_ms(now: float, then: float) -> int:
    return max(0, round(1000 * (now - then)))


def _ahead(clock: ClockOffset, wall_ahead_us: int) -> int:
    """Return how far a peer's wall clock is ahead of ours; it was compared with `now`."""
    return UNKNOWN_US if clock.ahead_us == UNKNOWN_US else clock.ahead_us - wall_ahead_us
