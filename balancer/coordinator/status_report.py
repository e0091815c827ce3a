"""What ranks wait for, and the status report that `counterpoise doctor` shows.

The reason is in the answer to a rank's ping, which is also sent unasked now and then. The report
says how the run goes, with a note on each peer. Everything here only reads. Texts that came from
peers are cut, and of many peers only the most important are noted: workers that are not ready, then
those silent for longest; trainers that wait, then those whose request is open for longest.
"""

from collections import Counter
from collections.abc import Iterable

from ..parties.seats import format_ranks
from ..protocol.parts import Hole
from ..protocol.payload_messages import RequestBatch
from ..protocol.status_messages import StatusReport, TrainerStatus, WorkerStatus
from ..protocol.transitions import W_READY
from .delivery.sample import ByteBudget, Sample
from .delivery.step import PendingStep
from .peers.records import RankPeer, WorkerPeer
from .run.epoch import EpochRun
from .run.granting import reported_sample
from .state import CoordinatorState

# Workers and trainers that a report notes, and characters of a text that came from a peer.
MAX_NOTES, MAX_TEXT = 256, 200
# A trainer that waits for a microbatch sends a ping every second; after this it waits no more.
WAITS_S = 2.5
# Characters of a process' name that are quoted, and ranks that are named one by one.
MAX_NAME, MAX_RANKS = 200, 8
# A worker without a result for this long is named to those who wait.
SLOW_S = 5.0


def held_back_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which process that shares its rank a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.run is None:
        return ""
    nearest = state.requests.nearest_of(peer, state.run.number)
    slowest = state.sharers.why_held_back(rank, nearest.rank, nearest.step) if nearest else None
    if nearest is None or slowest is None:
        return ""
    name = slowest.hello.name or slowest.peer.decode(errors="replace")
    where = "cannot be reached" if slowest.peer in state.sharers.lost else "has not come further"
    return (
        f"{name:.{MAX_NAME}}, which shares this rank and {where} than step "
        f"{slowest.reached(nearest.rank)[0]}"
    )


def label_reason(state: CoordinatorState, peer: bytes) -> str:
    """Return which ranks' label tokens a process waits for, "" if for none."""
    rank = state.ranks.get(peer)
    if rank is None or rank.started is None or state.job is None:
        return ""
    found = state.labels.waits_for(peer, rank.started.run, state.job.plan.ranks)
    if found is None:
        return ""
    step, missing = found
    names = {r: each.hello.name for each in state.ranks.values() for r in each.hello.ranks}
    of = ", ".join(f"{r} ({names.get(r) or 'not here':.{MAX_NAME}})" for r in missing[:MAX_RANKS])
    return f"the label tokens of step {step} from rank {of}"


def waiting_reason(state: CoordinatorState) -> str:
    """Return in a few words what the ranks wait for, and who cannot do it."""
    refused = f"; {state.refused}" if state.refused and not state.has_ready_worker else ""
    return _waits_for(state) + refused


def _waits_for(state: CoordinatorState) -> str:
    if not state.workers:
        return "a worker to connect"
    if missing := state.missing_ranks():
        return f"ranks {missing}, which have gone"
    if state.job is None:
        return "a trainer to bring a job"
    if (run := state.run) is not None:
        unknown, window = run.feed.unknown, run.feed.end - run.feed.start
        what = f"costs of the next window: {window - unknown} of {window} samples are measured"
        if run.delivery.steps:
            what = "decoded samples"
        elif not unknown:
            what = "the plan of the next window"
        return what + _slow_sample(state, run)
    return "ranks to begin" if state.is_ready else "a worker to open the data"


def _slow_sample(state: CoordinatorState, run: EpochRun) -> str:
    """Return which worker has shown no result for longest, and of which sample; "" if not long."""
    lease = min(run.leases, key=lambda each: each.shown_at, default=None)
    worker = None if lease is None else state.workers.get(lease.worker)
    if lease is None or worker is None or state.now - lease.shown_at < SLOW_S:
        return ""
    sample = reported_sample([lease], worker.in_progress) or next(iter(lease.samples.values()))
    what = repr(sample.key) if sample.key else f"number {sample.index} of the source"
    silent_s = state.now - lease.shown_at
    return (
        f"; worker {worker.hello.name:.{MAX_NAME}} has shown no result for {silent_s:.0f} s, and "
        f"works on sample {what:.{MAX_NAME}}"
    )


def make_status_report(state: CoordinatorState, number: int) -> StatusReport:
    """Return a report of bounded size; `number` is the question's."""
    run, diagnostics, now = state.run, state.diagnostics, state.now
    budget = run.delivery.budget if run else ByteBudget(0, state.kept)
    leases = Counter(lease.worker for lease in run.leases) if run else Counter[bytes]()
    steps = run.delivery.steps if run else {}
    used = budget.held_bytes + budget.reserved_bytes
    nothing_missing = not any(map(_missing, steps.values()))
    return StatusReport(
        number=number,
        clock_us=diagnostics.clock_us(now),
        software=cut(diagnostics.software),
        workers=len(state.workers),
        trainers=len(state.ranks),
        waiting=waiting_reason(state),
        trouble=cut(state.failure.reason) if state.failure else "",
        epoch=run.begin.epoch if run else -1,
        front=run.delivery.planned.front[0] if run else -1,
        held_bytes=budget.held_bytes,
        budget_bytes=budget.limit_bytes,
        is_full=run is not None and used + budget.largest_bytes > budget.limit_bytes,
        all_decoded=bool(steps) and not leases and nothing_missing,
        loads_to_measure=any(map(_loads_to_measure, state.workers.values())),
        parts=leases.total(),
        lost=diagnostics.lost,
        lost_ms=_ago_ms(now, diagnostics.lost_at) if diagnostics.lost else -1,
        last_lost=tuple(map(cut, diagnostics.last_lost)),
        dropped=state.dropped,
        refused=diagnostics.refused,
        rejected_workers=tuple(map(cut, diagnostics.last_refused)),
        holes=run.holes if run else 0,
        last_holes=tuple(
            Hole(hole.ordinal, cut(hole.key), cut(hole.reason), cut(hole.source))
            for hole in (run.last_holes if run else ())
        ),
        worker_statuses=worker_notes(state, leases),
        trainer_statuses=rank_notes(state),
        over_budget=run.feed.over_budget if run else 0,
        turned_away=diagnostics.turned_away,
    )


def worker_notes(state: CoordinatorState, leases: Counter[bytes]) -> tuple[WorkerStatus, ...]:
    """Return notes on the workers, at most MAX_NOTES; `leases` is how many each has."""

    def importance(worker: WorkerPeer) -> tuple[bool, bool, float, str]:
        ready = state.state_of(worker.peer) == W_READY
        return ready, not worker.unresponsive, worker.heard_at, worker.hello.name

    chosen = sorted(state.workers.values(), key=importance)[:MAX_NOTES]
    return tuple(_worker_note(state, worker, leases[worker.peer]) for worker in chosen)


def rank_notes(state: CoordinatorState) -> tuple[TrainerStatus, ...]:
    """Return notes on the trainer processes, at most MAX_NOTES."""
    nearest = state.requests.nearest_of_peers(state.run.number) if state.run else {}
    notes = [_rank_note(state, rank, nearest.get(rank.peer)) for rank in state.ranks.values()]
    notes.sort(key=lambda note: (not note.is_waiting, -note.oldest_request_ms, note.ranks))
    return tuple(notes[:MAX_NOTES])


def needs(run: EpochRun, request: RequestBatch) -> str:
    """Return in a few words what a requested microbatch lacks, "" if it lacks nothing."""
    step = run.delivery.steps.get(request.step)
    if step is None:
        return "its step to be planned"
    batch = step.find(request.rank, request.microbatch)
    if batch is None:
        return "nothing: its step has fewer microbatches"
    if batch.missing:
        return f"{_lacking(batch.samples)} of {len(batch.samples)} samples to be decoded"
    if step.is_blocked:
        return f"its step's holes to be known: {step.unsettled} samples are not decoded yet"
    return ""


def cut(text: str) -> str:
    """Return a text that came from a peer, cut to what a report holds."""
    return text[:MAX_TEXT]


def _lacking(samples: Iterable[Sample]) -> str:
    """Return how many samples are not decoded, and how many of these no worker has."""
    open_samples = [s for s in samples if s.is_missing]
    leased = sum(sample.reserved > 0 for sample in open_samples)
    if leased == len(open_samples):
        return f"{leased}"
    return f"{len(open_samples)} (no worker has {len(open_samples) - leased} of them yet)"


def _worker_note(state: CoordinatorState, worker: WorkerPeer, leases: int) -> WorkerStatus:
    is_inline = worker.serves is not None and state.job and state.job.transport == "inline"
    why = worker.why_inline or ('transport="inline" was given' if is_inline else "")
    done, (recent, recent_s) = worker.stats.done, worker.stats.recent(state.now)
    return WorkerStatus(
        name=cut(worker.hello.name),
        host=cut(worker.hello.host),
        software=cut(worker.hello.software),
        fingerprint=cut(worker.fingerprint),
        state=state.state_of(worker.peer).removeprefix("worker "),
        unresponsive=worker.unresponsive,
        last_message_ms=_ago_ms(state.now, worker.heard_at),
        parts=leases,
        probed=done["probed"],
        decoded=done["decoded"],
        failed=done["failed"],
        nbytes=done["nbytes"],
        recent_ms=round(1000 * recent_s),
        recent_probed=recent["probed"],
        recent_decoded=recent["decoded"],
        recent_bytes=recent["nbytes"],
        recent_decode_ms=recent["decode_ms"] or recent["probe_ms"],
        recent_busy_ms=recent["probe_ms"] + recent["decode_ms"],
        recent_cpu_ms=recent["cpu_ms"],
        ahead_us=worker.clock.ahead_us,
        transport=cut(f"inline: {why}" if why else worker.hello.transport),
    )


def _loads_to_measure(worker: WorkerPeer) -> bool:
    done = worker.stats.done
    return done["decoded"] > 0 and not done["decode_ms"]


def _rank_note(
    state: CoordinatorState, rank: RankPeer, nearest: tuple[RequestBatch, float] | None
) -> TrainerStatus:
    started, request = rank.started, nearest[0] if nearest else None
    name = state.state_of(rank.peer).removeprefix("rank ")
    # -1 says that there is no run, or that nothing is requested.
    return TrainerStatus(
        ranks=cut(format_ranks(rank.hello.ranks)),
        state="finished" if rank.finished else name,
        epoch=started.epoch if started else -1,
        step=request.step if request else -1,
        microbatch=request.microbatch if request else -1,
        oldest_request_ms=_ago_ms(state.now, nearest[1]) if nearest else -1,
        is_waiting=bool(nearest) and state.now - rank.pinged_at <= WAITS_S,
        missing=needs(state.run, request) if request and state.run else "",
        ahead_us=rank.clock.ahead_us,
        waited_ms=rank.waited_ms,
    )


def _missing(step: PendingStep) -> int:
    """Return how many samples a step's microbatches miss that their ranks have not taken."""
    return sum(batch.missing for rank in step.ranks for batch in rank if not batch.taken)


def _ago_ms(now: float, then: float) -> int:
    return max(0, round(1000 * (now - then)))
