"""The trainer of a simulated cluster: processes that play ranks, and the ledgers they keep.

All crash together and start again from a ledger, as torch elastic has it; what they had been given
after it counts as not delivered.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .job import to_json
from .messages import Message, Place
from .rank_session import Arrival, RankSession
from .simulation_world import SLOW, START, World

Say = Callable[..., None]
Mark = tuple[int, int, int]
Saved = tuple[int, Place, tuple[int, ...]]
# How often a rank that waits asks again.
PATIENCE_S = 1.0
# The trainer starts again from one of so many ledgers that it has kept.
LEDGERS = 4


@dataclass(slots=True)
class RankProcess:
    """A trainer process that plays some ranks: like loader/connection.py and its loop."""

    ranks: tuple[int, ...]
    life: int
    session: RankSession
    epoch: int
    at: Place
    holes: tuple[int, ...] = ()
    begun: bool = False
    training: bool = False
    done: bool = False
    heard: float = 0.0
    slow_until: float = 0.0

    @property
    def peer(self) -> bytes:
        """Its address."""
        return b"rank-%d-%d" % (self.ranks[0], self.life)

    @property
    def ledger(self) -> tuple[int, Place, tuple[int, ...]]:
        """The epoch, where all its ranks are in it, and the holes of the step there."""
        if not self.begun or self.done:
            return self.epoch, self.at, self.holes
        return self.epoch, self.session.here, self.session.holes

    @property
    def mark(self) -> Mark:
        """The first (epoch, step, microbatch) that one of its ranks has not had."""
        epoch, place, _ = self.ledger
        return epoch, place.step, place.microbatch

    @property
    def party(self) -> str:
        """Its name in faults."""
        return f"rank {self.ranks[0]}"


class Trainer:
    """All processes of a trainer."""

    def __init__(self, world: World, say: Say) -> None:
        settings = world.settings
        self.world = world
        self.say = say
        self.processes: dict[bytes, RankProcess] = {}
        self._lives = 0
        start = settings.epoch, settings.at.step, settings.at.microbatch
        first: tuple[Mark, Saved] = (start, (settings.epoch, settings.at, ()))
        self._ledgers: deque[tuple[Mark, Saved]] = deque([first], LEDGERS)
        # Per rank, (epoch, step, microbatch) of what was delivered, beside outcome.delivered.
        self._marks: dict[int, list[Mark]] = {}
        for ranks in settings.processes:
            world.outcome.delivered |= {rank: [] for rank in ranks}
            world.outcome.weights |= {rank: [] for rank in ranks}
            self._marks |= {rank: [] for rank in ranks}

    def start(self, epoch: int, at: Place, holes: tuple[int, ...]) -> None:
        """Start all processes at a ledger."""
        job = self.world.settings.job
        for ranks in self.world.settings.processes:
            session = RankSession(
                ranks, to_json(job), self.world.settings.prefetch, job.microbatches
            )
            process = RankProcess(ranks, self._lives, session, epoch, at, holes)
            self.processes[process.peer] = process
            self.world.peers[process.peer] = (process.party, self._hearing(process))
            self._says(process, [session.hello])
            self._wait(process)
        self._lives += 1

    def crash(self, down_s: float) -> None:
        """Kill all ranks; they start again from one of the last ledgers."""
        if not self.processes:
            return
        self._save()
        mark, ledger = self.world.random.choice(self._ledgers)
        self._ledgers = deque([(mark, ledger)], LEDGERS)
        outcome = self.world.outcome
        for rank, marks in self._marks.items():
            keep = sum(each < mark for each in marks)
            del marks[keep:], outcome.delivered[rank][keep:]
            del outcome.weights[rank][keep:]
        for process in self.processes.values():
            self.world.network.sever(process.party)
            del self.world.peers[process.peer]
        self.processes.clear()
        self.world.network.at(down_s, lambda: self.start(*ledger))

    def slow_down(self, party: str, until: float) -> None:
        """Let a process train slowly until then."""
        for process in self.processes.values():
            if process.party == party:
                process.slow_until = until

    def _save(self) -> None:
        """Keep a ledger of where the rank is that is farthest behind."""
        if len(self.processes) == len(self.world.settings.processes):
            behind = min(self.processes.values(), key=lambda rank: rank.mark)
            self._ledgers.append((behind.mark, behind.ledger))

    def _says(self, process: RankProcess, messages: list[Message]) -> None:
        for message in messages:
            self.say(process.party, process.peer, message)

    def _wait(self, process: RankProcess) -> None:
        """Ask again now and then, as long as the trainer waits in vain."""
        if self.processes.get(process.peer) is not process or process.done:
            return
        silent = self.world.now - process.heard
        if not process.training and silent >= PATIENCE_S:
            self._says(process, process.session.ask_again())
        self.world.network.at(PATIENCE_S, lambda: self._wait(process))

    def _hearing(self, process: RankProcess) -> Callable[[Message, tuple[object, ...]], None]:
        def hear(message: Message, payloads: tuple[object, ...]) -> None:
            if self.world.traced:
                self.world.trace(process.peer.decode(), "hears", message)
            process.heard = self.world.now
            process.session.handle(message, payloads)
            self._advance(process)

        return hear

    def _advance(self, process: RankProcess) -> None:
        """Ask ahead; if the trainer is idle, take the next microbatch and train on it."""
        session = process.session
        if session.trouble:
            self.world.fail(session.trouble)
        if session.trouble or process.done:
            return
        if not process.begun:
            if session.ready is None:
                return
            process.begun = True
            self._says(process, session.begin(process.epoch, process.at, process.holes))
        if session.state == "running":
            self._says(process, session.asks())
        if process.training:
            return
        taken = session.take()
        if taken is not None:
            self._train(process, *taken)
        elif session.at_end():
            self._end_epoch(process)

    def _end_epoch(self, process: RankProcess) -> None:
        settings = self.world.settings
        process.epoch, process.at, process.holes = process.epoch + 1, START, ()
        if process.epoch == settings.epoch + settings.epochs:
            process.done = True
            self.world.over = all(rank.done for rank in self.processes.values())
            return
        self._says(process, process.session.begin(process.epoch, START))
        self._advance(process)

    def _train(self, process: RankProcess, arrival: Arrival, messages: list[Message]) -> None:
        batch, outcome = arrival.batch, self.world.outcome
        payloads = tuple(each for each in arrival.payloads if isinstance(each, bytes))
        given = (batch.step, batch.microbatch, tuple(item.key for item in batch.items), payloads)
        outcome.delivered[batch.rank].append(given)
        holes = tuple(hole.key for hole in batch.holes)
        outcome.weights[batch.rank].append((batch.weights, holes))
        self._marks[batch.rank].append((process.epoch, batch.step, batch.microbatch))
        outcome.holes += holes
        if batch.microbatch + 1 == batch.microbatches:
            outcome.places.append(batch.after)
            self._save()
        self._says(process, messages)
        process.training = True
        slow = SLOW if self.world.now < process.slow_until else 1.0
        train_s = self.world.settings.train_s * slow
        self.world.network.at(train_s, lambda: self._trained(process))

    def _trained(self, process: RankProcess) -> None:
        if self.processes.get(process.peer) is process:
            process.training = False
            process.heard = self.world.now
            self._advance(process)
