"""Parties and trainers' sessions on a network that loses, doubles and reorders messages.

One seed decides all: the topology, the plan, the network, and the faults. A fault is the balancer's
end and start, a trainer's, that of all trainers, a trainer that is silent for long, and a worker
with all that it keeps. `Simulation(seed).play()` raises BrokenError for the first property that
does not hold.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any

from msgspec import structs

from counterpoise.balancer.parties.incoming import PieceToPull
from counterpoise.balancer.parties.messages import GENERATION, GiveBatch
from counterpoise.balancer.parties.parties import Parties
from counterpoise.balancer.parties.run_attempt import RunAttempt
from counterpoise.balancer.parties.seats import LATE_S
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.pool.tickets import KeptPiece, Ticket
from counterpoise.balancer.protocol.parts import EpochPosition, Weights
from counterpoise.balancer.run.tasks import LoadedBatch, MicrobatchFacts, RunStart

LATEST_S = 3000.0
WEIGHTS = Weights(1, 1, 1, 1, 1, 1)


class BrokenError(Exception):
    """A property does not hold."""


@dataclass(frozen=True)
class Epoch:
    """The plan of an epoch: (step, microbatch) of each number, and the positions."""

    number: int
    sizes: tuple[int, ...]
    window: int

    @cached_property
    def cells(self) -> list[tuple[int, int]]:
        return [(step, m) for step, size in enumerate(self.sizes) for m in range(size)]

    def position(self, index: int) -> EpochPosition:
        """Return the position of a number; that after the last is the epoch's end."""
        cells = self.cells
        step, microbatch = cells[index] if index < len(cells) else (len(self.sizes), 0)
        first = step - step % self.window
        costs = f"costs{first}" if step > first or microbatch else ""
        return EpochPosition(10 * first, first, step, microbatch, costs)

    def facts(self, rank: int, index: int) -> MicrobatchFacts:
        step, microbatch = self.cells[index]
        after = self.position(self.cells.index((step, 0)) + self.sizes[step])
        inside = EpochPosition(
            after.start, after.window_step, after.step, 0, f"costs{step - step % self.window}"
        )
        holes = (10 * step + 3,) if step % 3 == 1 else ()
        return MicrobatchFacts(
            rank, step, microbatch, self.sizes[step], WEIGHTS, (), (), inside, (), (), holes
        )

    def labels(self, rank: int, step: int) -> int:
        return 1 + rank + 10 * step + 1000 * self.number


@dataclass(eq=False)
class Trainer:
    """A trainer process: its session, what it computes, and what it was handed."""

    name: str
    ranks: tuple[int, ...]
    sharer: int
    incarnation: int
    pace_s: float
    session: Any
    epochs: list[Epoch]
    start: int  # the number in the first epoch
    served: int
    peer: bytes = b""
    died_at: float = math.inf
    is_frozen: bool = False
    is_cut_off: bool = False
    is_busy: bool = False
    turn: int = -1  # of epochs
    had: list[tuple[int, int, int]] = field(default_factory=list)  # of (epoch, rank, number)
    has_left: bool = False

    def expected(self) -> list[tuple[int, int, int]]:
        order = []
        for turn, epoch in enumerate(self.epochs):
            first = 0 if turn else self.start
            for index in range(first, len(epoch.cells)):
                skipped = self.served if turn == 0 and index == first else 0
                order += [(epoch.number, rank, index) for rank in self.ranks[skipped:]]
        return order

    @property
    def is_done(self) -> bool:
        return self.turn == len(self.epochs)

    @property
    def is_dead(self) -> bool:
        return self.died_at < math.inf


class Simulation:
    """One seed's world."""

    def __init__(self, seed: int, latest_s: float = LATEST_S) -> None:
        self.latest_s = latest_s
        self.rng = random.Random(seed)
        rng = self.rng
        self.now = self.done_at = 0.0
        self._numbers = count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.loss = rng.choice([0, 0, 0.02, 0.1])
        self.double = rng.choice([0, 0.02, 0.1])
        self.slow = rng.choice([0.0, 0.1, 0.4])
        self.ranks, self.sharers = rng.randint(1, 4), rng.choice([1, 1, 2, 3])
        self.credit = rng.choice([1, 2, 4, 8])
        self.counts = rng.random() < 0.5
        self.in_step = rng.random() < 0.5
        self.window = rng.randint(1, 3)
        self.ends_after = 0.0 if rng.random() < 0.7 else 30.0  # a connection to who has gone
        self.make_s = rng.choice([0.0, 0.01, 0.1])
        self.epochs = [
            Epoch(n, tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 6))), self.window)
            for n in range(rng.randint(1, 2))
        ]
        self.kept: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self.places: dict[int, tuple[Ticket, int, int, int]] = {}
        self.parties: Parties | None = None
        self.generation, self.launches, self.to_come = 100, 0, 0
        self._attempt: RunAttempt | None = None
        self.died_at: dict[bytes, float] = {}  # of all trainers, by peer
        self.trainers: list[Trainer] = []
        self._start_balancer()
        self._launch(self.epochs, 0)
        self._tick()
        faults = [self._end_balancer, self._end_balancer, self._end_trainer, self._relaunch,
                  self._freeze, self._end_worker]  # fmt: skip
        self.faults = rng.choice([0, 0, 1, 2, 4])
        for _ in range(self.faults):
            self._at(rng.choice([1.0, 3.0]) * rng.random(), rng.choice(faults))

    # --- time and messages

    def _at(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), act))

    def _post(self, act: Callable[[], None]) -> None:
        """Let a message come, once, twice, late, or never."""
        rng = self.rng
        if rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.double else 1):
            late = rng.random() * (5 if rng.random() < self.slow * 0.2 else 0.02)
            self._at(late, act)

    def play(self) -> None:
        """Play until all trainers are done; raises BrokenError."""
        while self.to_come or not all(t.has_left or t.is_dead for t in self.trainers):
            if self.now > self.latest_s:
                raise BrokenError(f"hangs: {self._describe()}")
            self.now, _, act = heapq.heappop(self._events)
            act()
        for trainer in self.trainers:
            if not trainer.is_dead and trainer.had != trainer.expected():
                raise BrokenError(f"{trainer.name} had {trainer.had}, not {trainer.expected()}")
        until = self.now + 80  # a late JoinJob may begin a run, which goes on without others
        while self.now < until and self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        parties = self.parties
        if parties is not None:
            kept = [ticket.number for ticket, *_ in self.places.values()]
            left = parties._seats.peers, kept, parties.attempt, parties._labels._steps
            if any(left):
                raise BrokenError(f"kept at the end: {left}")

    def _describe(self) -> str:
        stand = [(t.name, t.turn, len(t.had), t.session.waiting) for t in self.trainers]
        return f"at {self.now:.0f} s {stand}"

    # --- balancer

    def _start_balancer(self) -> None:
        self.generation += 50
        self.parties = Parties(self.ranks, self.generation, int)
        self._attempt = None
        parties = self.parties
        self._at(self.rng.choice([0.0, 2.0]), lambda: self._make_ready(parties))

    def _make_ready(self, parties: Parties) -> None:
        if parties is self.parties:
            parties.set_ready(100, "print")
            self._serve()

    def _end_balancer(self) -> None:
        self.parties = None
        self.kept.clear()
        self.places.clear()
        self._at(self.rng.choice([0.1, 3.0]), self._start_if_none)

    def _start_if_none(self) -> None:
        if self.parties is None:
            self._start_balancer()

    def _tick(self) -> None:
        self._at(1.0, self._tick)
        if self.parties is not None:
            self.parties.tick(self.now)
            self._serve()
        self.done_at = self.done_at if self._are_all_done() else self.now
        if self.places and self.now > self.done_at + 60:
            raise BrokenError(f"kept although all have it: tickets {[*self.places]}")

    def _are_all_done(self) -> bool:
        return all(t.is_done for t in self.trainers if not t.is_dead)

    def _receive(self, trainer: Trainer, message: Any) -> None:
        is_late = trainer.is_dead and self.now > trainer.died_at + LATE_S  # its connection is over
        if self.parties is not None and not is_late:
            self.parties.receive(trainer.peer, message, self.now)
            self._serve()

    def _serve(self) -> None:
        """Do what the caller of Parties does."""
        parties = self.parties
        if parties is None:
            return
        if parties.attempt is not self._attempt:
            self._free()
            self._begin(parties)
        if parties.attempt is not None:
            for rank in range(self.ranks):
                self._give_on(parties.attempt, rank)
        self._free()
        for lost in parties.lost:
            self._repair(lost.ticket, lost.peer, lost.message)
        parties.lost.clear()
        for peer, message in parties.take_messages():
            if isinstance(message, GiveBatch):
                self._check_give(peer, message)
            trainer = next((t for t in self.trainers if t.peer == peer and not t.is_dead), None)
            if trainer is not None and not (trainer.is_cut_off or trainer.session.has_left):
                self._post(partial(self._hear, trainer, message))
            elif trainer is not None or self.now >= self.died_at.get(peer, 0.0) + self.ends_after:
                self._at(0.0, partial(self._note_unreachable, peer))

    def _note_unreachable(self, peer: bytes) -> None:
        if self.parties is not None:
            self.parties.note_unreachable(peer, self.now)

    def _begin(self, parties: Parties) -> None:
        self._attempt = attempt = parties.attempt
        self._ready_at: dict[tuple[int, int], float] = {}
        if attempt is None:
            return
        self._epoch = epoch = self.epochs[attempt.start.epoch]
        at = attempt.start.at
        self._first = (
            epoch.cells.index((at.step, at.microbatch))
            if at.step < len(epoch.sizes)
            else len(epoch.cells)
        )
        inside = structs.replace(at, costs=epoch.position(self._first).costs)
        if inside != epoch.position(self._first):
            raise BrokenError(f"begins at {at}, which is no position")
        base = epoch.cells.index((attempt.key.at.step, attempt.key.at.microbatch))
        self._offset = base
        for rank in range(self.ranks):
            for trainer in self._takers(rank, epoch.number):
                known = trainer.session._run.known.items()
                holes = {h for step, of_step in known if step >= at.step for h in of_step}
                # What it has got while it was asked the balancer need not know.
                if not {h for h in holes if h // 10 in attempt.known} <= {*attempt.start.holes}:
                    raise BrokenError(f"begins without holes of {holes}")
        self._next = [self._first] * self.ranks
        when = self.now
        for index in range(self._first, len(epoch.cells)):
            for rank in range(self.ranks):
                when += self.rng.random() * self.make_s
                self._ready_at[rank, index] = when
                if self.make_s:
                    self._at(when - self.now, self._serve)

    def _give_on(self, attempt: RunAttempt, rank: int) -> None:
        epoch = self._epoch
        while attempt.wants_more(rank):
            index = self._next[rank]
            if index == len(epoch.cells):
                attempt.end(rank, 7)
                return
            if self._ready_at[rank, index] > self.now:
                return
            self._next[rank] += 1
            ticket = self._make(epoch, rank, index)
            attempt.give(epoch.facts(rank, index), LoadedBatch(ticket, label_tokens=5))

    def _make(self, epoch: Epoch, rank: int, index: int) -> Ticket | None:
        if self.rng.random() < 0.1:
            return None
        number = next(self._numbers)
        pieces = [KeptPiece((n,)) for n in range(self.rng.randint(1, 3))]
        ticket = Ticket(number, len(pieces) == 1, pieces)
        self.places[number] = ticket, epoch.number, rank, index
        for place in range(len(pieces)):
            self._fill(ticket, place)
        return ticket

    def _fill(self, ticket: Ticket, place: int) -> None:
        _, epoch, rank, index = self.places[ticket.number]
        piece = ticket.pieces[place]
        piece.worker, piece.serial = b"%d" % self.rng.randint(1, 3), next(self._numbers)
        self.kept[int(piece.worker), piece.serial] = epoch, rank, index, place

    def _free(self) -> None:
        parties = self.parties
        for ticket in parties.freed:
            if ticket.is_free:
                raise BrokenError(f"ticket {ticket.number} is freed twice")
            ticket.is_free = True
            _, epoch, rank, index = self.places.pop(ticket.number)
            for piece in ticket.pieces:
                if piece.worker is not None:
                    self.kept.pop((int(piece.worker), piece.serial), None)
            for trainer in self._takers(rank, epoch):
                if trainer.session._run.ranks[rank].have <= index - self._offset:
                    raise BrokenError(
                        f"ticket of {rank, index} is freed before {trainer.name} has it"
                    )
        parties.freed.clear()

    def _takers(self, rank: int, epoch: int) -> list[Trainer]:
        """Return who takes microbatches of a rank in the attempt that goes on."""
        attempt, peers = self.parties.attempt, self.parties._seats.peers
        if attempt is None or attempt is not self._attempt or attempt.start.epoch != epoch:
            return []
        return [
            t for t in self.trainers
            if not t.is_dead and rank in t.ranks and t.peer in peers
            and t.peer in attempt.queues[rank].takers
            and t.session._run.number == attempt.key.run
        ]  # fmt: skip

    def _check_give(self, peer: bytes, give: GiveBatch) -> None:
        rank = give.facts.rank
        takers = self._takers(rank, self._epoch.number)
        taker = next((t for t in takers if t.peer == peer), None)
        if taker is None or give.version >> GENERATION != self.parties._generation:
            return
        session = taker.session
        upto = {each: upto for each, upto, _ in session._wants(session._run)}
        if give.index >= upto[rank]:
            raise BrokenError(f"{taker.name} is sent {rank, give.index} beyond its credit")

    def _repair(self, ticket: Ticket, peer: bytes, message: Any) -> None:
        """Send lost pieces through the balancer, or have them made again."""
        for number in message.pieces:
            piece = ticket.pieces[number]
            if piece.worker is None:
                continue
            frames = self.kept.get((int(piece.worker), piece.serial))
            if frames is not None:
                trainer = next((t for t in self.trainers if t.peer == peer), None)
                if trainer is not None:
                    self._post(partial(self._pulled, trainer, message, number, frames))
            else:
                self._lose(ticket, number)

    def _lose(self, ticket: Ticket, number: int) -> None:
        ticket.version += 1
        ticket.pieces[number].worker = None
        self._at(self.rng.random(), lambda: self._make_again(ticket, number))

    def _make_again(self, ticket: Ticket, number: int) -> None:
        if not ticket.is_free and ticket.number in self.places and self.parties is not None:
            self._fill(ticket, number)
            if self.parties.attempt is not None:
                self.parties.attempt.renew(ticket)
            self._serve()

    def _end_worker(self) -> None:
        token = self.rng.randint(1, 3)
        for key in [key for key in self.kept if key[0] == token]:
            del self.kept[key]
        for ticket, *_ in list(self.places.values()):
            for number, piece in enumerate(ticket.pieces):
                if piece.worker == b"%d" % token:
                    self._lose(ticket, number)

    # --- trainers

    def _launch(self, epochs: list[Epoch], start: int, incarnation: int = 0) -> None:
        rng = self.rng
        self.to_come -= incarnation > 0
        if not incarnation:
            self.groups: list[tuple[int, tuple[int, ...]]] = []
            for sharer in range(self.sharers):
                left = [*range(self.ranks)]
                while left:
                    size = rng.choice([1, 1, len(left)])
                    self.groups.append((sharer, tuple(left[:size])))
                    del left[:size]
        served = 0
        if len(self.groups) == 1 and incarnation and start < len(epochs[0].cells):
            served = rng.randrange(self.ranks)
        self.trainers = [t for t in self.trainers if not t.is_dead]
        for sharer, ranks in self.groups:
            self._join(sharer, ranks, epochs, start, served, incarnation)

    def _join(
        self,
        sharer: int,
        ranks: tuple[int, ...],
        epochs: list[Epoch],
        start: int,
        served: int,
        incarnation: int,
    ) -> None:
        name = f"ranks {ranks} of {sharer}"
        session = TrainerSession(
            ranks, '{"plan": 1}', "{}", self.credit, sharer, self.sharers, incarnation, name
        )
        pace_s = self.rng.choice([0.0, 0.01, 0.1, 1.0])
        trainer = Trainer(name, ranks, sharer, incarnation, pace_s, session, epochs, start, served)
        trainer.peer = b"%d.%d.%d" % (sharer, ranks[0], next(self._numbers))
        self.trainers.append(trainer)
        self._at(self.rng.random(), lambda: self._beat(trainer))

    def _hear(self, trainer: Trainer, message: Any) -> None:
        if trainer.is_dead:
            return
        if trainer.is_frozen:
            self._at(5.0, lambda: self._hear(trainer, message))
            return
        trainer.session.receive(message)
        if trainer.session.failure:
            raise BrokenError(f"{trainer.name}: {trainer.session.failure}")
        self._act(trainer)

    def _beat(self, trainer: Trainer) -> None:
        if trainer.is_dead or trainer.session.has_left:
            return
        self._at(1.0, lambda: self._beat(trainer))
        if not trainer.is_frozen:
            self._send(trainer, trainer.session.beat(asks=True))
            self._act(trainer)

    def _send(self, trainer: Trainer, messages: list[Any]) -> None:
        for message in messages:
            self._post(partial(self._receive, trainer, message))

    def _act(self, trainer: Trainer) -> None:
        """Let a trainer go on as far as it can."""
        session = trainer.session
        if trainer.is_dead:
            return
        self._send(trainer, session.take_messages())
        for pull in session.take_pulls():
            self._post_pull(trainer, pull)
        if trainer.is_busy or trainer.is_frozen or session.ready is None:
            return
        if session.has_left or trainer.is_done:
            if not session._is_leaving and self._are_all_done() and not self.places:
                session.leave()
                self._send(trainer, session.take_messages())
            trainer.has_left = session._is_leaving
            return
        if trainer.turn < 0 or session.is_at_end:
            trainer.turn += 1
            if not trainer.is_done:
                epoch = trainer.epochs[trainer.turn]
                first, served = (0, 0) if trainer.turn else (trainer.start, trainer.served)
                session.begin(RunStart(epoch.number, epoch.position(first), (), served))
            self._act(trainer)
            return
        batch = session.peek()
        if batch is None:
            self._send(trainer, session.take_messages(waits=True))
            return
        give, epoch = batch.give.facts, trainer.epochs[trainer.turn]
        if self.counts and session.label_sum(give.step) is None:
            if (session._run.number, give.step) not in session._counted:
                tokens = {rank: epoch.labels(rank, give.step) for rank in trainer.ranks}
                session.count_labels(give.step, tokens)
                self._send(trainer, session.take_messages())
            return
        total = sum(epoch.labels(rank, give.step) for rank in range(self.ranks))
        if self.counts and session.label_sum(give.step) != total:
            raise BrokenError(
                f"labels of step {give.step}: {session.label_sum(give.step)}, not {total}"
            )
        if self.in_step and not self._may_go(trainer, give.step):
            self._at(0.3, lambda: self._act(trainer))
            return
        self._check_frames(trainer, batch)
        trainer.is_busy = True
        self._at(trainer.pace_s * self.rng.random(), lambda: self._finish(trainer, batch))

    def _may_go(self, trainer: Trainer, step: int) -> bool:
        """Return whether all have done the steps before, as gradients need."""
        others = (t for t in self.trainers if not t.is_dead and t is not trainer)
        return all(
            (t.turn, t.session._run.place.here.step if t.session._run else 0)
            >= (trainer.turn, step)
            for t in others
        )

    def _finish(self, trainer: Trainer, batch: Any) -> None:
        if trainer.is_dead:
            return
        trainer.is_busy = False
        give = batch.give.facts
        trainer.session.release(batch)
        trainer.session.release(batch)  # as after a signal
        step, microbatch = give.step, give.microbatch
        epoch = trainer.epochs[trainer.turn]
        trainer.had.append((epoch.number, give.rank, epoch.cells.index((step, microbatch))))
        if trainer.had != trainer.expected()[: len(trainer.had)]:
            raise BrokenError(f"{trainer.name} had {trainer.had[-3:]} in this order")
        self._act(trainer)

    def _check_frames(self, trainer: Trainer, batch: Any) -> None:
        give, epoch = batch.give, trainer.epochs[trainer.turn]
        index = epoch.cells.index((give.facts.step, give.facts.microbatch))
        expected = {n: (epoch.number, give.facts.rank, index, n) for n in range(len(give.pieces))}
        if batch.frames != expected:
            raise BrokenError(f"{trainer.name} has {batch.frames} for {expected}")

    def _post_pull(self, trainer: Trainer, pull: PieceToPull) -> None:
        late = self.rng.random() * (3 if self.rng.random() < 0.05 else 0.02)
        self._at(late, lambda: self._answer(trainer, pull))

    def _answer(self, trainer: Trainer, pull: PieceToPull) -> None:
        if trainer.is_dead:
            return
        frames = self.kept.get((pull.piece.token, pull.piece.serial))
        fails = self.rng.random() < 0.03
        if frames is None or fails:
            trainer.session.note_lost(pull, "no answer")
            self._act(trainer)
        else:
            self._pulled(trainer, pull, pull.number, frames)

    def _pulled(self, trainer: Trainer, of: Any, number: int, frames: Any) -> None:
        if not trainer.is_dead:
            trainer.session.note_pulled(of.rank, of.index, of.version, number, frames)
            self._act(trainer)

    # --- faults

    def _end_trainer(self) -> None:
        """End one trainer; it begins again where it began, if all are still in that run."""
        alive = [t for t in self.trainers if not t.is_dead]
        if all(t.turn < 1 for t in alive) and alive:
            old = self.rng.choice(alive)
            old.died_at, launch = self.now, self.launches
            self.died_at[old.peer] = self.now
            self.to_come += 1
            self._at(self.rng.choice([0.1, 2.0, 40.0]), lambda: self._restart(old, launch))
        else:
            self._relaunch()

    def _restart(self, old: Trainer, launch: int) -> None:
        self.to_come -= 1
        if launch == self.launches and not any(t.has_left for t in self.trainers):
            number = old.incarnation + 1
            self._join(old.sharer, old.ranks, old.epochs, old.start, old.served, number)

    def _relaunch(self) -> None:
        """End all trainers; they begin where the slowest has been, as from a ledger."""
        alive = [t for t in self.trainers if not t.is_dead]
        if not alive or any(t.has_left for t in alive):
            return
        stands = []
        for t in alive:
            turn = min(max(t.turn, 0), len(t.epochs) - 1)
            done = sum(1 for e, r, _ in t.had if e == t.epochs[turn].number)
            first = t.start if turn == 0 else 0
            stands.append(
                (
                    t.epochs[turn].number,
                    first + (done + (t.served if turn == 0 else 0)) // len(t.ranks),
                )
            )
        epoch, index = min(stands)
        for t in self.trainers:
            t.died_at = self.died_at[t.peer] = min(t.died_at, self.now)
        index = min(index, len(self.epochs[epoch].cells) - 1)
        incarnation = max(t.incarnation for t in self.trainers) + 1
        self.to_come += 1
        self.launches += 1  # who was to be started again is not
        self._at(0.5, lambda: self._launch(self.epochs[epoch:], index, incarnation))

    def _freeze(self) -> None:
        alive = [t for t in self.trainers if not t.is_dead]
        if alive:
            trainer = self.rng.choice(alive)
            trainer.is_frozen, trainer.is_cut_off = True, self.rng.random() < 0.5
            self._at(self.rng.choice([2.0, 45.0]), lambda: self._thaw(trainer))

    def _thaw(self, trainer: Trainer) -> None:
        trainer.is_frozen = trainer.is_cut_off = False
        if not trainer.is_dead:
            self._act(trainer)
