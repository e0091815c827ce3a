"""The coordinator: order, leases, plan and delivery, without a socket and without a clock.

Theory of operation. `handle` takes a peer's message and returns what to send; `tick` does the same
for the passing of time. Each looks up (state of the peer, message) in the table, calls the action
of that name, and then *settles*: plans what can be planned, sends every microbatch that is asked
for and ready, and gives idle workers leases. Nothing else sends anything.

There is one job at a time, and of it one run. A rank that begins the next run (the next epoch)
waits until all ranks have left the one before.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .feed import Planner
from .job import Job, difference, from_json, to_json
from .messages import (
    Ack,
    Ask,
    Batch,
    Begin,
    DecodeDone,
    EpochEnd,
    Lease,
    Message,
    Offer,
    Ping,
    ProbeDone,
    RankBye,
    RankHello,
    Ready,
    Refused,
    Revoke,
    SampleFailed,
    Status,
    Trouble,
    Welcome,
    WorkerBeat,
    WorkerBye,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from .order import permutation
from .plan import PlanConfig
from .planner import make_planner
from .run import Run, WorkerView
from .tables import COORDINATOR

# A worker process that has not been heard of for so long is taken for dead.
WORKER_SILENCE_S = 10.0
# A rank may be silent for as long as it likes (it trains); this often it is told that we are here.
RANK_NOTICE_S = 10.0


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()


@dataclass(slots=True)
class _Worker:
    peer: bytes
    hello: WorkerHello
    heard: float

    @property
    def view(self) -> WorkerView:
        return WorkerView(self.peer, self.hello.slot)


@dataclass(slots=True)
class _Rank:
    peer: bytes
    ranks: tuple[int, ...]
    begun: Begin | None = None
    told: float = 0.0


class Coordinator:
    """The state machine behind the balancer's socket."""

    def __init__(
        self, job: Job | None = None, plan_with: Callable[[PlanConfig], Planner] = make_planner
    ) -> None:
        """`job` is given where the balancer is started for it, else the first rank brings it."""
        self.job = job
        self.fixed_job = job is not None
        self.plan_with = plan_with
        self.count = 0
        self.fingerprint = ""
        self.dropped = 0
        self.run: Run | None = None
        self.trouble: Trouble | None = None
        self._states: dict[bytes, str] = {}
        self._workers: dict[bytes, _Worker] = {}
        self._ranks: dict[bytes, _Rank] = {}
        self._asks: dict[tuple[int, int, int, int], bytes] = {}
        self._now = 0.0
        self._out: list[Send] = []

    # --- events in, effects out

    def handle(
        self,
        peer: bytes,
        message: Message,
        payloads: Sequence[object] = (),
        nbytes: int = 0,
        now: float = 0.0,
    ) -> list[Send]:
        """Take in one message with its payload frames (`nbytes` in all); return what to send."""
        self._now = now
        if peer in self._workers:
            self._workers[peer].heard = now
        self._step(peer, type(message).__name__, message, payloads, nbytes)
        return self._settle()

    def gone(self, peer: bytes, undelivered: Message, now: float) -> list[Send]:
        """Take in that a peer cannot be reached any more: this message did not get there."""
        self._now = now
        if self.run is not None and isinstance(undelivered, Lease):
            self.run.withdraw(undelivered.lease)
        self._step(peer, "gone", None)
        return self._settle()

    def tick(self, now: float) -> list[Send]:
        """Take in the time: silent workers, late leases, ranks to be told that we are here."""
        self._now = now
        for worker in list(self._workers.values()):
            if now - worker.heard > WORKER_SILENCE_S:
                self._step(worker.peer, "silence", None)
        if self.run is not None:
            for held in self.run.expire(now):
                self._send(held.worker, Revoke(held.number))
        for rank in self._ranks.values():
            if now - rank.told > RANK_NOTICE_S:
                self._answer(rank.peer, Ping())
        return self._settle()

    def next_deadline(self) -> float:
        """Return the latest time at which `tick` must be called."""
        silence = min((w.heard for w in self._workers.values()), default=math.inf)
        notice = min((r.told for r in self._ranks.values()), default=math.inf)
        lease = self.run.leases.next_deadline() if self.run else math.inf
        return min(silence + WORKER_SILENCE_S, notice + RANK_NOTICE_S, lease) + 0.01

    def _step(
        self,
        peer: bytes,
        event: str,
        message: Message | None,
        payloads: Sequence[object] = (),
        nbytes: int = 0,
    ) -> None:
        """Walk one row of the table."""
        state = self._states.get(peer, "absent")
        row = COORDINATOR.get((state, event))
        if row is None:
            self.dropped += event != "gone"
            return
        after, action = row
        self._states[peer] = after
        if action == "take_payload":
            self._take_payload(peer, message, payloads[0], nbytes)  # type: ignore[arg-type]
        else:
            getattr(self, f"_{action}")(peer, message)
        if self._states.get(peer) == "absent":
            self._states.pop(peer, None)

    def _send(self, peer: bytes, message: Message, payloads: tuple[object, ...] = ()) -> None:
        self._out.append(Send(peer, message, payloads))
        if peer in self._ranks:
            self._ranks[peer].told = self._now

    # --- workers

    def _greet_worker(self, peer: bytes, hello: WorkerHello) -> None:
        for old in [w for w in self._workers.values() if w.hello.name == hello.name]:
            self._lose_worker(old.peer, None)
            if old.peer != peer:
                self._states.pop(old.peer, None)
        self._workers[peer] = _Worker(peer, hello, self._now)
        if self.job is not None:
            self._step(peer, "job", None)

    def _send_job(self, peer: bytes, _: None) -> None:
        source = self.job is not None and self.job.source
        self._send(peer, Welcome(to_json(self.job) if self.job and source else ""))

    def _forget_source(self, peer: bytes, _: None) -> None:
        if self.run is not None:
            self.run.lose_worker(peer, died=False)

    def _accept_worker(self, peer: bytes, ready: WorkerReady) -> None:
        first = not self.fingerprint
        same = ready.count == self.count and ready.fingerprint == self.fingerprint
        allowed = self.job is not None and self.job.mixed_workers and ready.count == self.count
        if not first and not same and not allowed:
            self._send(
                peer,
                Refused(
                    f"this worker's data or libraries differ from the others' (fingerprint "
                    f"{ready.fingerprint}, {ready.count} samples; the others have "
                    f"{self.fingerprint}, {self.count}): install the same versions, "
                    "or allow it with mixed_workers=True"
                ),
            )
            self._workers.pop(peer, None)
            self._states[peer] = "absent"
            return
        if first:
            self.count, self.fingerprint = ready.count, ready.fingerprint
            for rank in self._ranks.values():
                self._send(rank.peer, Ready(self.count, self.fingerprint))
            self._switch_run()

    def _report_worker(self, peer: bytes, failed: WorkerFailed) -> None:
        self._fail("worker", f"worker {self._workers[peer].hello.name}: {failed.reason}")

    def _take_costs(self, peer: bytes, message: ProbeDone) -> None:
        if self.run is not None:
            self._guard(lambda run: run.probed(peer, message, self._now))

    def _take_payload(self, peer: bytes, message: DecodeDone, payload: object, nbytes: int) -> None:
        self._guard(lambda run: run.decoded(peer, message, payload, nbytes, self._now))

    def _take_failure(self, peer: bytes, message: SampleFailed) -> None:
        self._guard(lambda run: run.failed(peer, message, self._now))

    def _release_worker(self, peer: bytes, _: WorkerBye) -> None:
        self._workers.pop(peer, None)
        if self.run is not None:
            self.run.lose_worker(peer, died=False)

    def _lose_worker(self, peer: bytes, _: None) -> None:
        self._workers.pop(peer, None)
        if self.run is not None:
            self.run.lose_worker(peer, died=True)

    def _note_beat(self, _: bytes, beat: WorkerBeat) -> None:
        for worker in self._workers.values():
            if (worker.hello.name, worker.hello.incarnation) == (beat.name, beat.incarnation):
                worker.heard = self._now

    # --- ranks

    def _greet_rank(self, peer: bytes, hello: RankHello) -> None:
        for old in [r for r in self._ranks.values() if set(r.ranks) & set(hello.ranks)]:
            self._replace_rank(old, peer)
        reason = self._why_refused(hello)
        if reason:
            self._send(peer, Refused(reason))
            self._states[peer] = "absent"
            return
        self._ranks[peer] = _Rank(peer, hello.ranks, None, self._now)
        if self.job is None:
            self._start_job(from_json(hello.job))
        if self._is_ready():
            self._send(peer, Ready(self.count, self.fingerprint))
        if self.trouble is not None:
            self._send(peer, self.trouble)

    def _replace_rank(self, old: _Rank, peer: bytes) -> None:
        """A rank has started anew: the run it was in is over for everybody."""
        if old.peer != peer:
            self._send(
                old.peer, Trouble("protocol", f"another process now plays ranks {old.ranks}")
            )
            self._states.pop(old.peer, None)
        self._drop_rank(old.peer)
        self._stop_run()

    def _why_refused(self, hello: RankHello) -> str:
        try:
            theirs = from_json(hello.job)
        except ValueError as error:
            return str(error)
        if not hello.ranks or min(hello.ranks) < 0 or max(hello.ranks) >= theirs.ranks:
            return f"ranks {hello.ranks} are not among the job's {theirs.ranks}"
        if self.job is not None and self.job != theirs:
            return "this balancer serves another job: " + difference(to_json(self.job), hello.job)
        return ""

    def _is_ready(self) -> bool:
        """A job that is planned needs a worker to say how many samples there are."""
        return bool(self.fingerprint) or (self.job is not None and self.job.plan is None)

    def _start_job(self, job: Job) -> None:
        self.job = job
        for peer in list(self._workers):
            self._step(peer, "job", None)

    def _begin(self, peer: bytes, begin: Begin) -> None:
        rank = self._ranks[peer]
        rank.begun = begin
        others = {r.begun for r in self._ranks.values() if r.begun and r.begun.run == begin.run}
        if len(others) > 1:
            self._fail("protocol", "the ranks are not at the same place: they begin " + str(others))
        self._switch_run()

    def _switch_run(self) -> None:
        """Start the run that all ranks have begun, once nobody is left in the one before."""
        if self.job is None or not self._is_ready():
            return
        wanted = [r.begun for r in self._ranks.values() if r.begun]
        current = self.run.number if self.run else -1
        later = [begin for begin in wanted if begin.run > current]
        covered = {n for r in self._ranks.values() if r.begun in later for n in r.ranks}
        if not later or (self.run is not None and len(covered) < self.job.ranks):
            return
        self._stop_run()
        begin = min(later, key=lambda each: each.run)
        order = permutation(self.count, self._seed(), begin.epoch, shuffle=self.job.shuffle)
        planner = self.plan_with(self.job.plan) if self.job.plan else None
        self.run = Run(begin, self.job, order, planner)

    def _stop_run(self) -> None:
        if self.run is not None:
            for held in self.run.leases.clear():
                self._send(held.worker, Revoke(held.number))
        self.run, self.trouble = None, None

    def _seed(self) -> int:
        return self.job.plan.seed if self.job and self.job.plan else 0

    def _take_offer(self, _: bytes, offer: Offer) -> None:
        if self.run is not None and self.run.number == offer.run:
            self.run.offer(offer)

    def _note_ask(self, peer: bytes, ask: Ask) -> None:
        if ask.rank in self._ranks[peer].ranks:
            self._asks[ask.run, ask.step, ask.microbatch, ask.rank] = peer

    def _free(self, _: bytes, ack: Ack) -> None:
        if self.run is not None and self.run.number == ack.run:
            self.run.delivery.taken(ack.rank, ack.step, ack.microbatch)

    def _answer(self, peer: bytes, _: Ping) -> None:
        ready = sum(self._states.get(peer) == "worker ready" for peer in self._workers)
        held = self.run.delivery.held_bytes if self.run else 0
        if not self._workers:
            waiting = "a worker to connect"
        elif self.run is None:
            waiting = "a worker to open the data" if not self._is_ready() else "ranks to begin"
        else:
            waiting = self.run.waiting()
        self._send(peer, Status(ready, held, waiting))

    def _release_rank(self, peer: bytes, _: RankBye | None) -> None:
        self._drop_rank(peer)
        if not self._ranks:
            self._end_job()
        else:
            self._switch_run()

    def _drop_rank(self, peer: bytes) -> None:
        self._ranks.pop(peer, None)
        self._asks = {ask: asker for ask, asker in self._asks.items() if asker != peer}

    def _end_job(self) -> None:
        """Nobody trains any more: forget the run, and the job if it came with the ranks."""
        self._stop_run()
        for peer in [] if self.fixed_job else list(self._workers):
            self._step(peer, "job ended", None)
        if not self.fixed_job:
            self.job, self.count, self.fingerprint = None, 0, ""

    # --- after every event

    def _guard(self, action: Callable[[Run], None]) -> None:
        """Do something that may find the run impossible."""
        if self.run is None or self.trouble is not None:
            return
        try:
            action(self.run)
        except ValueError as error:
            self._fail("plan", str(error))

    def _fail(self, kind: str, reason: str) -> None:
        self.trouble = Trouble(kind, reason)
        for peer in self._ranks:
            self._send(peer, self.trouble)

    def _settle(self) -> list[Send]:
        self._guard(lambda run: run.advance())
        self._deliver()
        self._grant()
        out, self._out = self._out, []
        return out

    def _deliver(self) -> None:
        run = self.run
        if run is None or not self._asks:
            return
        for ask in sorted(self._asks):
            number, step, microbatch, rank = ask
            if number < run.number:
                del self._asks[ask]
            if number != run.number:
                continue
            peer = self._asks[ask]
            if self.trouble is not None:
                self._send(peer, self.trouble)
                del self._asks[ask]
                continue
            end = run.past_end(step)
            if end is not None:
                self._send(peer, EpochEnd(number, end))
                del self._asks[ask]
                continue
            parcel = run.parcel(rank, step, microbatch)
            if parcel is None:
                continue
            if parcel.fatal is not None:
                self._fail("data", f"sample {parcel.fatal.key!r}: {parcel.fatal.reason}")
                continue
            self._send(peer, parcel.message, parcel.payloads)
            del self._asks[ask]

    def _grant(self) -> None:
        """Give leases to those who have fewest, until nobody can take any."""
        run = self.run
        if run is None or self.trouble is not None:
            return
        idle = self._ready_workers()
        while idle:
            idle.sort(key=lambda worker: len(run.leases.of(worker.peer)))
            still: list[_Worker] = []
            for worker in idle:
                lease = run.grant(worker.view, self._now)
                if lease is not None:
                    self._send(worker.peer, lease)
                    still.append(worker)
            idle = still

    def _ready_workers(self) -> list[_Worker]:
        return [w for w in self._workers.values() if self._states.get(w.peer) == "worker ready"]


def batches(effects: Iterable[Send]) -> list[Batch]:
    """Return the microbatches among some effects."""
    return [effect.message for effect in effects if isinstance(effect.message, Batch)]
