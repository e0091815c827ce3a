"""The status report of a played job, which `counterpoise doctor`, `top` and `--metrics` show.

Everything here only reads. Texts that came from peers are cut, and of many peers only the most
important are noted: workers that are not ready, or late, then those silent for longest; trainers
that wait, then those that have had nothing for longest.
"""

from msgspec import structs

from ..parties.run_attempt import RankQueue
from ..parties.seats import TrainerPeer, format_ranks
from ..protocol.status_messages import StatusReport, TrainerStatus, WorkerStatus
from .admission import AdmittedWorker
from .job import PlayedJob

# Workers and trainers that a report notes, and characters of a text that came from a peer.
MAX_NOTES, MAX_TEXT = 256, 200
# A trainer that waits for a microbatch asks why every second; after this it waits no more.
WAITS_S = 2.5
# A worker at one sample for this share of lease_s, after which it is given up, is late.
LATE_SHARE = 0.5


def make_status_report(job: PlayedJob, refused: int, now: float) -> StatusReport:
    """Return a report of bounded size at a time in seconds; refused: of the whole balancer."""
    parties, pool, events, source = job.parties, job.pool, job.events, job.admission.source
    run, attempt = job.player.run, parties.attempt
    stopped = (t.stopped.reason for t in parties.peers.values() if t.stopped is not None)
    queues = [] if attempt is None else attempt.queues
    firsts = [_place(job, queue, queue.first)[0] for queue in queues]
    trainers = [_note_trainer(job, trainer, now) for trainer in parties.peers.values()]
    trainers.sort(key=lambda note: (not note.is_waiting, -note.oldest_request_ms, note.ranks))
    workers = [_note_worker(job, worker, now) for worker in job.admission.workers.values()]
    workers.sort(key=lambda note: (
        note.state != "opening", not note.unresponsive, -note.last_message_ms, note.name
    ))  # fmt: skip
    waiting = job.admission.missing or "a trainer"
    if trainers and attempt is None:
        waiting = job.admission.missing or parties.starts.describe_wait(now)
    elif trainers:
        waiting = trainers[0].missing
    return StatusReport(
        workers=len(workers), trainers=len(trainers), waiting=_cut(waiting),
        trouble=_cut(next(stopped, "")), epoch=-1 if attempt is None else attempt.start.epoch,
        front=min((step for step in firsts if step >= 0), default=-1),
        held_bytes=pool.kept_bytes, budget_bytes=job.spec.buffer_bytes,
        is_full=run is not None and run.find_status(0)[2],
        loads_to_measure=source is not None and source.loads_first,
        parts=sum(len(worker.givings) for worker in pool.workers.values()),
        lost=events.lost, lost_ms=_ago_ms(now, events.lost_at) if events.lost else -1,
        last_lost=tuple(map(_cut, events.last_lost)), turned_away=events.turned_away,
        rejected_workers=tuple(map(_cut, events.last_refused)), refused=refused,
        holes=events.holes,
        last_holes=tuple(
            structs.replace(hole, key=_cut(hole.key), reason=_cut(hole.reason),
                            source=_cut(hole.source))
            for hole in events.last_holes
        ),
        worker_statuses=tuple(workers[:MAX_NOTES]), trainer_statuses=tuple(trainers[:MAX_NOTES]),
    )  # fmt: skip


def _note_worker(job: PlayedJob, worker: AdmittedWorker, now: float) -> WorkerStatus:
    hello, stats, known = worker.hello, worker.stats, job.pool.workers.get(worker.peer)
    done, recent = stats.done, stats.recent()
    why = worker.why_inline
    if not worker.server.address:
        why = "the balancer has keys, and this worker would serve without"
    return WorkerStatus(
        name=_cut(hello.name),
        state="opening" if known is None else "leaving" if known.is_leaving else "ready",
        unresponsive=known is not None and job.pool.hangs(known, LATE_SHARE),
        last_message_ms=_ago_ms(now, stats.since if known is None else known.heard),
        parts=0 if known is None else len(known.givings), probed=done["probed"],
        decoded=done["decoded"], failed=done["failed"], nbytes=done["nbytes"],
        recent_ms=_ago_ms(now, stats.since), recent_decoded=recent["decoded"],
        recent_bytes=recent["nbytes"], recent_decode_ms=recent["decode_ms"],
        recent_busy_ms=recent["busy_ms"], recent_cpu_ms=recent["cpu_ms"],
        transport=_cut(f"inline: {why}") if why and hello.address else _cut(hello.transport),
    )  # fmt: skip


def _note_trainer(job: PlayedJob, trainer: TrainerPeer, now: float) -> TrainerStatus:
    place, lacks = (-1, -1), False
    state = "joined" if trainer.begun is None else "waits for others"
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
        state="stopped" if trainer.stopped is not None else state, step=place[0],
        microbatch=place[1], oldest_request_ms=_ago_ms(now, trainer.moved_at) if lacks else -1,
        is_waiting=is_waiting, missing=_cut(job.parties.waiting(trainer)) if lacks else "",
        waited_ms=trainer.waited_ms,
    )  # fmt: skip


def _place(job: PlayedJob, queue: RankQueue, index: int) -> tuple[int, int]:
    """Return step and number of a rank's microbatch, by its number in the run; -1 if unknown."""
    if (batch := queue.batches.get(index)) is not None:
        return batch.give.facts.step, batch.give.facts.microbatch
    run = job.player.run
    return (-1, -1) if run is None else run.find_status(queue.rank)[:2]


def _cut(text: str) -> str:
    return text[:MAX_TEXT]


def _ago_ms(now: float, then: float) -> int:
    return max(0, round(1000 * (now - then)))
