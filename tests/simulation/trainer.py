"""The trainer of a simulated cluster: all its processes, and the ledgers they keep.

All crash together and start again from a ledger, as under torch elastic; what was delivered after
that ledger counts as not delivered.
"""

from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import Message, RankBye
from counterpoise.balancer.protocol.payload_messages import Batch
from counterpoise.balancer.protocol.rank_session import Arrival, RankSession
from tests.simulation.rank import Deliver, Mark, RankProcess, SimulatedLedger, party_name
from tests.simulation.transport.pulls import SimulatedPuller
from tests.simulation.world import SLOW, World

# A rank that waits repeats its requests this often.
ASK_AGAIN_S = 1.0
# The trainer keeps this many ledgers, and starts again from one of them.
LEDGERS = 4


class Trainer:
    """All processes of a trainer."""

    def __init__(self, world: World, deliver: Deliver) -> None:
        self.world = world
        self.deliver = deliver
        self.processes: dict[bytes, RankProcess] = {}
        # Until when no ledger can be written.
        self.disk_full_until = 0.0
        self._lives = 0
        self._is_down = False
        self._ledgers = deque([world.settings.start], LEDGERS)
        # Per rank, the marks of what was delivered, beside outcome.delivered.
        self._marks: dict[int, list[Mark]] = {}
        for ranks in world.settings.processes:
            seats = [self._seat(rank, n) for rank in ranks for n in range(world.settings.sharers)]
            world.outcome.delivered |= {seat: [] for seat in seats}
            world.outcome.details |= {seat: [] for seat in seats}
            self._marks |= {seat: [] for seat in seats}

    def start(self, ledger: SimulatedLedger) -> None:
        """Start all processes at a ledger; of those that share a rank, all but the first late."""
        self._is_down = False
        settings, life = self.world.settings, self._lives
        self._lives += 1
        for ranks in settings.processes:
            self._start(ranks, 0, life, ledger)
            for sharer in range(1, settings.sharers):
                late = partial(self._start, ranks, sharer, life, ledger)
                self.world.network.at(settings.late_s, late)

    def _start(
        self, ranks: tuple[int, ...], sharer: int, life: int, ledger: SimulatedLedger
    ) -> None:
        """Start a process, unless its launch is over."""
        if self._is_down or life + 1 < self._lives:
            return
        settings = self.world.settings
        job = settings.job
        name = party_name(ranks[0], sharer)
        session = RankSession(
            ranks, to_json(job), settings.prefetch, job.microbatches, sharer, name
        )
        process = RankProcess(ranks, life, session, ledger, self.deliver, sharer)
        if settings.pulls:
            process.puller = SimulatedPuller(
                self.world.servers,
                self.world.network,
                settings.delay_s,
                lambda: self._have_news(process),
            )
        self.processes[process.peer] = process
        self.world.peers[process.peer] = (process.party, self._receiver(process))
        process.send([session.hello])
        self._wait(process)

    def kill(self, party: str) -> None:
        """Kill one process; nobody starts it again."""
        for process in list(self.processes.values()):
            if process.party == party:
                self.world.network.sever(party)
                self._end(process)
                del self.processes[process.peer]

    def _end(self, process: RankProcess) -> None:
        """Cut a process off, and end what it reads."""
        del self.world.peers[process.peer]
        if process.puller is not None:
            process.puller.leave()

    @property
    def _counts_labels(self) -> bool:
        return self.world.settings.job.counts_batches

    def _seat(self, rank: int, sharer: int) -> int:
        """Return the number in the outcome of a rank's process among those that share it."""
        return sharer * self.world.settings.job.plan.ranks + rank

    def crash(self, down_s: float) -> None:
        """Kill all ranks that are left; all start again from one of the last ledgers."""
        if self._is_down:
            return
        self._is_down = True
        self._save()
        ledger = self.world.random.choice(self._ledgers)
        self.world.trace("trainer goes back to", ledger)
        self._ledgers = deque([ledger], LEDGERS)
        self._forget_after(ledger)
        for process in self.processes.values():
            self.world.network.sever(process.party)
            self._end(process)
        self.processes.clear()
        self.world.network.at(down_s, lambda: self.start(ledger))

    def slow_down(self, party: str, until: float) -> None:
        """Make a process train slowly until then."""
        for process in self.processes.values():
            if process.party == party:
                process.slow_until = until

    def _forget_after(self, ledger: SimulatedLedger) -> None:
        outcome = self.world.outcome
        for rank, marks in self._marks.items():
            keep = sum(mark < ledger.mark for mark in marks)
            del marks[keep:], outcome.delivered[rank][keep:], outcome.details[rank][keep:]

    def _save(self) -> None:
        """Keep the ledger of the process that is farthest behind, if the disk has room."""
        settings = self.world.settings
        whole = len(self.processes) == len(settings.processes) * settings.sharers
        if whole and self.world.now >= self.disk_full_until:
            behind = min(self.processes.values(), key=lambda process: process.ledger.mark)
            if not self._counts_labels or self._have_totals(behind.ledger):
                self._ledgers.append(behind.ledger)

    def _have_totals(self, ledger: SimulatedLedger) -> bool:
        """Return whether a loader that counts label tokens could have handed out up to a ledger.

        It hands out nothing of a step before its total has come, and then all; here, where batches
        are recorded as they come, ledgers inside steps are left out.
        """
        waiting = (p for p in self.processes.values() if p.counted is not None)
        return ledger.is_between_steps and all(p.ledger.mark > ledger.mark for p in waiting)

    def _wait(self, process: RankProcess) -> None:
        """Repeat the requests of a process that waits, until it is done."""
        if self.processes.get(process.peer) is not process or process.done:
            return
        silent_s = self.world.now - process.heard_at
        if not process.training and silent_s >= ASK_AGAIN_S:
            self._pull(process)
            process.send(process.session.unanswered())
        self.world.network.at(ASK_AGAIN_S, lambda: self._wait(process))

    def _receiver(self, process: RankProcess) -> Callable[[Message, tuple[object, ...]], None]:
        def receive(message: Message, payloads: tuple[object, ...]) -> None:
            if self.world.traced:
                self.world.trace(process.peer.decode(), "receives", message)
            process.heard_at = self.world.now
            process.session.handle(message, payloads)
            self._pull(process)
            self._advance(process)

        return receive

    def _advance(self, process: RankProcess) -> None:
        """If the trainer is idle, take the next microbatch and train on it, or ask ahead and wait.

        While it trains it says nothing, whatever comes.
        """
        session = process.session
        if session.failure:
            self.world.fail(session.failure)
        if session.failure or process.done or not self._has_begun(process) or process.training:
            return
        has_total = self._has_total(process)
        taken = process.take() if has_total and not self._leaves(process) else None
        if taken is not None:
            self._train(process, *taken)
        elif has_total and (session.at_end() or self._leaves(process)):
            self._end_epoch(process)
        else:
            # A rank that was rejected or let go asks for nothing, but has what came before.
            process.send(session.new_requests())

    def _has_total(self, process: RankProcess) -> bool:
        """Return whether no total of label tokens is waited for; record one that has come."""
        if process.counted is None:
            return True
        epoch, step = process.counted
        total = process.session.label_total(step)
        if total is None:
            return False
        for rank in process.ranks:
            seat = self._seat(rank, process.sharer)
            self.world.outcome.label_totals[seat, epoch, step] = total
        process.counted = None
        self._save()
        return True

    def _has_begun(self, process: RankProcess) -> bool:
        """Begin the first run once the balancer is ready for it; return whether it has begun."""
        if not process.begun and process.session.ready is not None:
            process.begin()
        return process.begun

    def _leaves(self, process: RankProcess) -> bool:
        """Return whether the trainer leaves the first epoch here, though it is not over."""
        settings, here = self.world.settings, process.ledger
        first = here.epoch == settings.start.epoch
        return first and settings.leaves_at is not None and here.place.step >= settings.leaves_at

    def _end_epoch(self, process: RankProcess) -> None:
        settings = self.world.settings
        process.ledger = SimulatedLedger(process.ledger.epoch + 1)
        if process.ledger.epoch == settings.start.epoch + settings.epochs:
            process.done = True
            process.send([RankBye()])
            if process.puller is not None:
                process.puller.leave()
            expected = len(settings.processes) * settings.sharers
            done = sum(each.done for each in self.processes.values())
            self.world.over = done == expected
            return
        process.begin()
        self._advance(process)

    def _train(self, process: RankProcess, arrival: Arrival, messages: list[Message]) -> None:
        self._record(process, arrival.batch, arrival.payloads)
        process.send(messages)
        if self._counts_labels:
            process.count_labels(arrival.batch)
        process.training = True
        slow = SLOW if self.world.now < process.slow_until else 1.0
        train_s = self.world.settings.train_s * slow
        self.world.network.at(train_s, lambda: self._trained(process))

    def _record(self, process: RankProcess, batch: Batch, frames: Collection[object]) -> None:
        """Record a delivered microbatch; between steps keep the ledger."""
        outcome, rank = self.world.outcome, batch.rank
        payloads = tuple(frame for frame in frames if isinstance(frame, bytes))
        keys = tuple(item.key for item in batch.items)
        # A sample that kills has its position for a name where its costs were kept from a run
        # before: nobody lived to read it in this one (seed 208995).
        unread = {str(index): f"k{index}" for index in self.world.settings.deadly}
        holes = tuple(unread.get(hole.key, hole.key) for hole in batch.holes)
        index, seat = process.ranks.index(rank), self._seat(rank, process.sharer)
        self._marks[seat].append((process.ledger.epoch, batch.step, batch.microbatch, index))
        process.ledger = process.ledger.after(batch, process.ranks)
        outcome.delivered[seat].append((batch.step, batch.microbatch, keys, payloads))
        outcome.details[seat].append((batch.weights, holes, process.ledger))
        outcome.holes += holes
        if batch.microbatch + 1 == batch.microbatches and not self._counts_labels:
            self._save()

    def _pull(self, process: RankProcess) -> None:
        """Have a process ask for what has arrived."""
        if process.puller is not None:
            process.send(process.puller.turn(process.session))

    def _have_news(self, process: RankProcess) -> None:
        """Have a process go on with what it has pulled."""
        if self.processes.get(process.peer) is process and not process.done:
            self._pull(process)
            self._advance(process)

    def _trained(self, process: RankProcess) -> None:
        if self.processes.get(process.peer) is process:
            process.training = False
            self._pull(process)
            process.heard_at = self.world.now
            self._advance(process)
