"""A job of a balancer: a planned run that plays all ranks, over a pool of workers on the network.

Theory of operation. Trainers say what they begin, want and have (parties); the run says what each
rank's next microbatch is, as in a local loop, and gives tasks to the pool, which has workers make
and keep them. What a worker keeps is told to the trainers that lack it, and freed when all of them
have it. Nothing here knows a socket: events and the time come in, messages are taken out.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from ..parties.messages import FROM_TRAINER, BeginRun, GiveBatch, JoinJob
from ..parties.parties import Parties
from ..parties.run_attempt import Lost
from ..pool.messages import FromWorker, PartBroken, PoolBeat
from ..pool.pool import DEAD_S, GENERATION, NetworkPool
from ..protocol.job_spec import JobSpec, from_json
from ..protocol.messages import BalancerStops, Bye, UnknownPeer
from .admission import MAX_NAME, MAX_REASON, Admission, MakeCredentials
from .effects import Send
from .job_events import JobEvents
from .messages import (
    JobNotOpened,
    JobOpened,
    JoinPool,
    LeavePool,
    NameSamples,
    OpenJob,
    PulledFrames,
    SampleNames,
    WorkersAt,
)
from .relay import Relay, relayed
from .run_player import RunPlayer

# Who is silent, hangs or is late is looked for this often; trainers, and who is missing, this.
LOOK_S, TICK_S = 0.05, 1.0
# What comes within so long is done in one turn: a message to a peer costs as much as what it tells.
PACE_S = 0.001
# Workers whose source is not open are asked again this often.
ASK_S = 5.0
# Workers that are asked at a time what samples are called.
MOST_ASKED = 4
# All workers that have come were refused: another may come for so long.
REFUSED_S = 120.0
LAYOUTS = ("samples", "stacked", "layout", "workers")
_OF_TRAINERS = frozenset(FROM_TRAINER)


class PlayedJob:
    """One job; job: JSON of its JobSpec, layout: JSON of how batches are made of samples.

    name: of the job. numbers: of tokens and openings, which no other job of the balancer has.
    dead_s: a worker that is silent for so long is lost. is_due: `turn` has something to do.
    """

    def __init__(
        self,
        job: str,
        layout: str,
        generation: int = 0,
        name: str = "",
        numbers: Iterator[int] | None = None,
        make_credentials: MakeCredentials = lambda _: (b"", b""),
        dead_s: float = DEAD_S,
    ) -> None:
        """Raises ValueError where the job or the layout is none."""
        self.spec: JobSpec = from_json(job)
        kind, takes_empty = read_layout(layout, bool(self.spec.source))
        collates, self._on_host = kind != "samples", kind == "workers"
        # Of a host's own workers it is known when they end; a stopped one is waited for.
        dead_s = math.inf if self._on_host else dead_s
        skips = self.spec.on_error == "skip"
        self.pool = NetworkPool(self.spec.lease_s, collates, skips, generation, dead_s)
        numbers = count((generation << GENERATION) + 1) if numbers is None else numbers
        self.opening = OpenJob(next(numbers), job, layout)
        self.events = JobEvents(name)
        self.admission = Admission(
            self.spec, self.opening, self.pool, numbers, make_credentials, self.events
        )
        self.parties = Parties(
            self.spec.plan.ranks, generation, self.admission.find_token, self._describe_wait,
            on_host=self._on_host,
        )  # fmt: skip
        self.player = RunPlayer(self.spec, takes_empty, self.pool, self.parties, self.events)
        self.relay = Relay(self.admission.find_token)
        self._out: list[Send] = []
        self._turned_at = self._looked_at = self._ticked_at = self._asked_at = -math.inf
        self._refused_since = math.inf
        self.is_due = True

    # --- what happens

    def receive(self, peer: bytes, message: Any, frames: Sequence[object], now: float) -> None:
        """Take a message of a peer, with the frames behind it."""
        self.is_due = True
        kind = type(message)
        if kind in _OF_TRAINERS:
            self._hear_trainer(peer, message, now)
        elif kind is JoinPool:
            self.admission.join(peer, message, now)
            self._admit_started(now)
        elif kind is LeavePool and message.workers:  # those of a trainer
            self.admission.end(message.workers if peer in self.parties.peers else (), now)
        elif peer in self.admission.workers:
            self._hear_worker(peer, message, frames, now)
        else:
            is_gone = kind is LeavePool or (kind is PoolBeat and message.leaving)
            self._out.append(Send(peer, Bye() if is_gone else UnknownPeer()))

    def _hear_trainer(self, peer: bytes, message: Any, now: float) -> None:
        if isinstance(message, JoinJob) and self.parties.is_empty:
            self.admission.ask_failed()
            self.player.last_run = -1
        self.parties.receive(peer, message, now)
        if isinstance(message, BeginRun):
            self._admit_started(now)

    def _hear_worker(
        self, worker: bytes, message: Any, frames: Sequence[object], now: float
    ) -> None:
        match message:
            case JobOpened():
                self._open(worker, message, now)
            case JobNotOpened():
                self.admission.fail_to_open(worker, message, now)
            case PulledFrames():
                self._relay_frames(worker, message, frames)
            case SampleNames():
                self._name(message)
            case LeavePool():
                self.admission.lose(worker, now, "leave")
            case _:
                self._count(worker, message, now)
                self.pool.take(worker, message, now)

    def unreachable(self, peer: bytes, now: float) -> None:
        """Take note that a message could not be delivered: a worker is gone; trainers come back."""
        self.is_due = True
        self.parties.note_unreachable(peer, now)
        self.admission.lose(peer, now, "lost", " (its connection has ended)", has_died=True)

    def turn(self, now: float) -> list[Send]:
        """Do what there is to do; return messages, and to whom."""
        self.is_due, self._turned_at = False, now
        if now >= self._looked_at + LOOK_S:
            self._look(now)
        attempt, source = self.parties.attempt, self.admission.source
        if attempt is not None and source is not None:
            needed = attempt.start.samples
            if needed >= 0 and needed != len(source):
                self.admission.refuse_data(needed, now)
                self.parties.withdraw()
        self.player.turn(self.admission.source)
        for lost in self.parties.lost:
            self._take_lost(lost, now)
        self.parties.lost.clear()
        for ticket in self.parties.freed:
            self.pool.free(ticket)
        self.parties.freed.clear()
        for event, hello in self.parties.changes:
            name = f"{', '.join(map(str, hello.ranks[:8]))} ({hello.title})"
            self.events.log_peer(event, "rank", name, " (it is silent)" * (event == "lost"))
        self.parties.changes.clear()
        return self.take_sends()

    def next_look(self) -> float:
        """Return when `turn` is to be called next."""
        return self._turned_at + PACE_S if self.is_due else self._looked_at + LOOK_S

    def take_sends(self) -> list[Send]:
        """Return what is to be sent."""
        sends, self._out = self._out, []
        sends += [Send(*message) for message in self.admission.out + self.pool.take_messages()]
        self.admission.out.clear()
        for peer, message in self.parties.take_messages():
            if type(message) is GiveBatch and (servers := self._untold(peer, message)):
                sends.append(Send(peer, WorkersAt(servers)))
            sends.append(Send(peer, message))
        return sends

    def stop(self, reason: BalancerStops | UnknownPeer) -> list[Send]:
        """Return what to send before the job ends here: why to trainers, or else to workers."""
        self.player.end()
        is_for_trainers = isinstance(reason, BalancerStops)
        receivers = self.parties.peers if is_for_trainers else self.admission.workers
        return [*self.take_sends(), *(Send(peer, reason) for peer in receivers)]

    def _look(self, now: float) -> None:
        self._looked_at = now
        self.pool.look(now)
        for name, why in self.pool.lost:
            self.admission.lose(name, now, "lost", f" ({why})")
        self.pool.lost.clear()
        if self.pool.deaths:  # workers may know what such a sample is called
            self._ask_names(self.pool.workers)
        if now < self._ticked_at + TICK_S:
            return
        self._ticked_at = now
        self.parties.tick(now)
        self._admit_started(now)
        self.relay.tick(now)
        for name in self.pool.leaving():
            self._out.append(Send(name, Bye()))
        if now >= self._asked_at + ASK_S:
            self._asked_at = now
            self.admission.ask_unopened()
        reason = self.admission.failure
        is_refused = self.admission.refused and not self.admission.workers
        self._refused_since = min(self._refused_since, now) if is_refused else math.inf
        if now > self._refused_since + REFUSED_S:
            reason = f"{self.admission.refused}; no other has come for {REFUSED_S:.0f} s"
        if reason and self.parties.give_up(reason):
            self.events.log("failure", " fails: %.600s", reason, level=logging.ERROR)

    # --- workers

    def _count(self, worker: bytes, message: FromWorker, now: float) -> None:
        """Count what a worker has done, before the pool takes it."""
        stats, known = self.admission.workers[worker].stats, self.pool.workers.get(worker)
        if isinstance(message, PoolBeat):
            stats.take_beat(message, now)
        elif not isinstance(message, PartBroken) and known is not None:
            giving = known.givings.get(message.number)
            if giving is not None:
                stats.take_answer(message, giving.part, now)

    def _admit_started(self, now: float) -> None:
        """Have workers that a trainer has started for a run take part once all have begun it."""
        if self._on_host:
            self.admission.begin_run(self.parties.starts.run_begun, now)

    def _open(self, worker: bytes, opened: JobOpened, now: float) -> None:
        """Take a worker in whose source is open, if its data are those of the others."""
        needed, run = self.parties.samples_needed, self.player.run
        is_served = run is not None and not run.is_first
        if self.admission.source is not None and is_served:
            needed.add(len(self.admission.source))
        is_new = self.admission.open(worker, opened, needed, is_served, now)
        self._ask_names([worker])  # before it is given a sample of which it may die
        if is_new:
            self.player.costs = None  # workers have others
            self.parties.withdraw()
            self.parties.set_ready(opened.count, opened.fingerprint)

    def _ask_names(self, workers: Iterable[bytes]) -> None:
        """Ask what samples are called of which workers die: the balancer knows their indexes."""
        source = self.admission.source
        if source is not None and source.names_samples:
            unnamed = tuple(self.pool.deaths.keys() - source.names.keys())
            asked = islice(workers, MOST_ASKED if unnamed else 0)
            self._out += [Send(worker, NameSamples(unnamed)) for worker in asked]

    def _name(self, answer: SampleNames) -> None:
        """Take in what samples are called of which workers have died."""
        if (source := self.admission.source) is not None:
            for at, name in zip(answer.indexes, answer.names, strict=False):
                if at in self.pool.deaths:
                    source.names[at] = f"{name:.{MAX_NAME}}"

    def _take_lost(self, lost: Lost, now: float) -> None:
        """Have pieces sent to a trainer that cannot pull them."""
        message, pieces = lost.message, lost.ticket.pieces
        keepers = [pieces[number].worker for number in message.pieces]
        workers = [peer for peer in keepers if peer is not None]
        if (trainer := self.parties.peers.get(lost.peer)) is not None:
            admitted = [self.admission.workers[peer] for peer in workers]
            serving = [worker for worker in admitted if worker.server.address]
            if serving:
                servers = tuple(worker.server for worker in serving)
                self._out.append(Send(lost.peer, WorkersAt(servers)))
                trainer.known_tokens.update(server.token for server in servers)
                if message.reason:  # doctor shows it, and transport="direct" fails by it
                    why = f"{trainer.name} cannot pull: {message.reason:.{MAX_REASON}}"
                    for worker in serving:
                        worker.why_inline = why
            self._out += self.relay.ask(lost, now)

    def _relay_frames(self, worker: bytes, sent: PulledFrames, frames: Sequence[object]) -> None:
        """Send frames to the trainers that wait for them; those that are gone are made again."""
        for lost, number in self.relay.take(worker, sent.number):
            piece = lost.ticket.pieces[number]
            if sent.frames:
                self._out.append(relayed(lost, number, frames))
            elif (piece.worker, piece.serial) == (worker, sent.number):
                self.pool.remake(lost.ticket, (number,))

    def _untold(self, peer: bytes, message: GiveBatch) -> tuple[Any, ...]:
        """Return where the workers are that a message names, and its receiver does not know."""
        trainer = self.parties.peers.get(peer)
        known_tokens = set[int]() if trainer is None else trainer.known_tokens
        tokens = {piece.token for piece in message.pieces} - known_tokens
        known_tokens |= tokens
        servers = self.admission.servers
        return tuple(servers[token] for token in sorted(tokens) if token in servers)

    def _describe_wait(self, rank: int) -> str:
        """Return what a rank's next microbatch waits for, as text."""
        run, missing = self.player.run, self.admission.missing
        return missing or ("its turn" if run is None else run.describe_wait(rank)[0])


def read_layout(layout: str, has_source: bool) -> tuple[str, bool]:
    """Return how batches are made, one of LAYOUTS, and whether one can be made of no samples.

    layout: JSON, as describe_layout of workers/collate has it. Raises ValueError where it is none.

    >>> read_layout('{"kind": "samples", "takes_empty": true}', True)
    ('samples', True)
    """
    read = json.loads(layout)
    described = read if isinstance(read, dict) else {}
    kind, takes_empty = described.get("kind"), described.get("takes_empty")
    if kind not in LAYOUTS or type(takes_empty) is not bool or (has_source and kind == "workers"):
        raise ValueError(
            f"layout: kind {kind!r:.40}, takes_empty {takes_empty!r:.40}: allowed are {LAYOUTS} "
            '("workers" only where these are started with their source), and true or false'
        )
    return kind, takes_empty
